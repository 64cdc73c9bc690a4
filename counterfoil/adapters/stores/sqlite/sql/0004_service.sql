-- What the HTTP API asks for beside runs. None of it is written for a run or a call.

-- Agents that workers have, so that a name which nobody has is told from one whose worker is away for a moment.
CREATE TABLE agents (
    name  TEXT NOT NULL PRIMARY KEY,
    until INTEGER NOT NULL               -- so long the last sign of life of one that has it counts
) WITHOUT ROWID;

-- Reports are read by time.
DROP INDEX reports_newest;
CREATE INDEX reports_newest ON reports (tenant, at);

-- Of the request that began it, where that had an idempotency key.
ALTER TABLE interactions ADD COLUMN key_digest TEXT;

-- Messages into runs that came with an idempotency key.
CREATE TABLE sent (
    run    INTEGER NOT NULL REFERENCES runs (number),
    key    TEXT NOT NULL,
    digest TEXT NOT NULL,                -- of the request
    status TEXT NOT NULL,                -- of the run before it
    PRIMARY KEY (run, key)
) WITHOUT ROWID;
