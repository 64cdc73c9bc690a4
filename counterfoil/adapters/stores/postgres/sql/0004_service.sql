-- What the HTTP API asks for beside runs. None of it is written for a run or a call.

-- Agents that workers have, so that a name which nobody has is told from one whose worker is away for a moment.
CREATE TABLE agents (
    name  TEXT COLLATE "C" PRIMARY KEY,
    until TIMESTAMPTZ NOT NULL  -- so long the last sign of life of one that has it counts
) WITH (fillfactor = 20);  -- as workers

-- Reports are read by time.
DROP INDEX reports_newest;
CREATE INDEX reports_newest ON reports (hashtextextended(tenant, 0), at, number);

-- Of the request that began it, where that had an idempotency key.
ALTER TABLE interactions ADD COLUMN key_digest TEXT COLLATE "C";

-- Messages into runs that came with an idempotency key.
CREATE TABLE sent (
    run    BIGINT NOT NULL REFERENCES runs (number),
    key    TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,  -- of the request
    status TEXT COLLATE "C" NOT NULL,  -- of the run before it
    PRIMARY KEY (run, key)
);
