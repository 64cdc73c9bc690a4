-- Who takes part in an interaction, and when it began: it may begin before its first run.

ALTER TABLE interactions ADD COLUMN participants BYTEA;  -- as JSON; null: nobody was named
ALTER TABLE interactions ADD COLUMN created_at BIGINT NOT NULL DEFAULT 0;
UPDATE interactions SET created_at = coalesce(
    (SELECT min(created_at) FROM runs WHERE interaction = interactions.number), 0
);

CREATE INDEX interactions_newest ON interactions (hashtextextended(tenant, 0), number);
