-- Keys of the HTTP API. The secret itself is nowhere.
CREATE TABLE keys (
    number     INTEGER PRIMARY KEY,
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    user       TEXT NOT NULL,
    roles      TEXT NOT NULL,            -- as JSON, like scopes
    scopes     TEXT NOT NULL,
    digest     TEXT NOT NULL UNIQUE,     -- SHA-256 of the secret
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    UNIQUE (tenant, id)
);
