-- A record's own numbers are small integers; ids are texts that callers know. Times are microseconds since 1970, UTC.

CREATE TABLE interactions (
    number   INTEGER PRIMARY KEY,
    tenant   TEXT NOT NULL,
    id       TEXT NOT NULL,
    open_run INTEGER,                 -- the run that keeps others from starting
    UNIQUE (tenant, id)
);

CREATE TABLE runs (
    number        INTEGER PRIMARY KEY,
    tenant        TEXT NOT NULL,
    id            TEXT NOT NULL,
    interaction   INTEGER NOT NULL REFERENCES interactions (number),
    thread        TEXT,
    agent         TEXT NOT NULL,
    status        TEXT NOT NULL,
    ended_by      TEXT,
    epoch         INTEGER NOT NULL,   -- grows with each claim
    owner         TEXT,               -- as owners.py writes it; null: nobody drives it
    runnable      INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    wake_at       INTEGER,
    key           TEXT,
    key_digest    TEXT,
    parent        TEXT,
    pool          TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    not_before    INTEGER,
    started_at    INTEGER,            -- when it was first claimed, by the machine's clock
    ended_at      INTEGER,
    erased_at     INTEGER,            -- its contents, since it ended
    UNIQUE (tenant, id)
);

CREATE UNIQUE INDEX runs_key ON runs (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX runs_newest ON runs (tenant);
CREATE INDEX runs_interaction ON runs (interaction);

-- What a worker looks for. A run that waits for people alone is in none of the first four.
CREATE INDEX runs_free ON runs (agent, pool, priority DESC, number, tenant, runnable, owner, not_before)
    WHERE runnable = 1 AND owner IS NULL AND not_before IS NULL;
CREATE INDEX runs_later ON runs (agent, pool, not_before) WHERE runnable = 1 AND owner IS NULL AND not_before IS NOT NULL;
CREATE INDEX runs_waking ON runs (agent, pool, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_posted ON runs (owner) WHERE runnable = 1 AND owner IS NOT NULL;
CREATE INDEX runs_owned ON runs (owner, tenant) WHERE owner IS NOT NULL;
CREATE INDEX runs_paused ON runs (agent, pool) WHERE status = 'paused';
CREATE INDEX runs_started ON runs (tenant, started_at) WHERE started_at IS NOT NULL;
CREATE INDEX runs_ended ON runs (agent, ended_at) WHERE ended_at IS NOT NULL AND erased_at IS NULL;

-- Rows lie in the order of their arrival in the store, whatever their interaction: a group of commits then
-- changes few pages.
CREATE TABLE entries (
    row       INTEGER PRIMARY KEY,
    place     INTEGER NOT NULL UNIQUE,   -- interaction << 32 | entry
    run       INTEGER NOT NULL REFERENCES runs (number),
    kind      TEXT NOT NULL,
    step      INTEGER,
    idx       INTEGER,
    slot      INTEGER,                   -- of a start its attempt, from 1; of a result 0; else null
    sequence  INTEGER NOT NULL,          -- the first reading number that it takes; 0 where it takes none
    following INTEGER NOT NULL,          -- the next free reading number after it
    body      BLOB NOT NULL,
    content   BLOB,
    erased_at INTEGER,
    hash      BLOB NOT NULL
);

-- The fence: one start for each attempt. That a call has one result is looked up by the writer, which knows the run's
-- calls (known.py): an index over results would cost each of them a page more.
CREATE UNIQUE INDEX entries_start ON entries (run, step, idx, slot) WHERE slot > 0;

CREATE TABLE approvals (
    number   INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL REFERENCES runs (number),
    id       TEXT NOT NULL,
    call_id  TEXT NOT NULL,
    step     INTEGER NOT NULL,
    idx      INTEGER NOT NULL,
    thread   TEXT,
    asked    BLOB NOT NULL,              -- the approval as JSON
    decision BLOB,                       -- as JSON
    choice   TEXT,                       -- the decision's
    open     INTEGER NOT NULL,           -- awaits a decision
    consumed INTEGER NOT NULL DEFAULT 0, -- a start has used it
    UNIQUE (run, id)
);

CREATE INDEX approvals_open ON approvals (run) WHERE open = 1;

CREATE TABLE reports (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    run    INTEGER NOT NULL REFERENCES runs (number),
    tool   TEXT NOT NULL,
    code   TEXT,                         -- as text: a tool's own code may be of any size
    at     INTEGER NOT NULL,
    report BLOB NOT NULL                 -- as JSON
);

CREATE INDEX reports_newest ON reports (tenant);
CREATE INDEX reports_run ON reports (run);

CREATE TABLE locks (
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    owner   TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- Signs of life, in the database's own time.
CREATE TABLE workers (
    owner   TEXT NOT NULL PRIMARY KEY,
    beat_at INTEGER NOT NULL,
    every   REAL NOT NULL,               -- seconds between two
    since   INTEGER NOT NULL             -- when the first of those came that followed one another without a gap
) WITHOUT ROWID;

CREATE TABLE kept (
    number    INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    id        TEXT NOT NULL,
    run       INTEGER NOT NULL REFERENCES runs (number),
    total     INTEGER NOT NULL,          -- characters
    size      INTEGER NOT NULL,          -- bytes
    digest    TEXT NOT NULL,
    erased_at INTEGER,
    UNIQUE (tenant, id)
);

CREATE INDEX kept_run ON kept (run);

CREATE TABLE kept_pieces (
    place INTEGER PRIMARY KEY,           -- kept << 32 | the piece's first character
    piece BLOB NOT NULL                  -- whole characters in UTF-8
);
