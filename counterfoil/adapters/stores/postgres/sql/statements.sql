-- One statement under each name. `$1 << 32` is the place before an interaction's first entry.
-- Every write locks its interaction's row first, then its run's: `held` and `interaction` are the only locks, but for
-- those on rows of `locks`, which come last.

-- name: held
SELECT r.id, i.id, r.tenant, r.agent, r.status, r.ended_by, r.epoch, r.owner, r.runnable,
    r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority, r.not_before,
    r.number, r.thread, i.number, i.version, i.open_run, i.entry, i.hash, i.following
FROM runs r JOIN interactions i ON i.number = r.interaction
WHERE r.name = $1
FOR UPDATE OF i FOR UPDATE OF r

-- name: calls
SELECT step, idx, min(slot), max(slot) FROM entries
WHERE run = (SELECT number FROM runs WHERE name = $1) AND slot IS NOT NULL
GROUP BY step, idx

-- name: is_asking
SELECT EXISTS (
    SELECT FROM approvals WHERE run = (SELECT number FROM runs WHERE name = $1) AND open
)

-- name: append
INSERT INTO entries (place, run, kind, step, idx, slot, sequence, following, body, content, hash)
VALUES ROWS

-- name: tip
UPDATE interactions SET version = version + 1, entry = $2, hash = $3, following = $4 WHERE number = $1

-- name: touch
UPDATE interactions SET version = version + 1 WHERE number = $1

-- name: interaction
SELECT number, version, open_run, entry, hash, following, participants FROM interactions WHERE name = $1 FOR UPDATE

-- name: new_interaction
INSERT INTO interactions (
    number, name, tenant, id, open_run, version, entry, hash, following, participants, created_at
) VALUES ($1, $2, $3, $4, $5, 1, $6, $7, $8, $9, $10)

-- name: open_interaction
INSERT INTO interactions (name, tenant, id, version, entry, hash, following, participants, created_at, key_digest)
VALUES ($1, $2, $3, 1, 0, $4, 1, $5, $6, $7)
ON CONFLICT DO NOTHING RETURNING number

-- name: interaction_digest
SELECT key_digest FROM interactions WHERE name = $1

-- name: sent
SELECT digest, status FROM sent WHERE run = $1 AND key = $2

-- name: new_sent
INSERT INTO sent (run, key, digest, status) VALUES ($1, $2, $3, $4)

-- name: join
UPDATE interactions SET participants = $2 WHERE number = $1

-- name: interactions
SELECT i.id, i.created_at, i.participants, r.id
FROM interactions i LEFT JOIN runs r ON r.number = i.open_run
WHERE hashtextextended(i.tenant, 0) = hashtextextended($1, 0) AND i.tenant = $1
    AND ($2::bigint IS NULL OR i.number < $2)
ORDER BY i.number DESC LIMIT $3

-- name: interaction_row
SELECT i.id, i.created_at, i.participants, r.id
FROM interactions i LEFT JOIN runs r ON r.number = i.open_run
WHERE i.name = $1

-- name: interaction_number
SELECT number FROM interactions WHERE name = $1

-- name: new_numbers
SELECT nextval('interactions_number_seq'), nextval('runs_number_seq')

-- name: occupy
UPDATE interactions SET open_run = $1 WHERE number = $2

-- name: release
UPDATE interactions SET open_run = NULL WHERE number = $1 AND open_run = $2

-- name: new_run
INSERT INTO runs (
    number, name, tenant, id, interaction, thread, agent, status, epoch, owner, runnable, created_at, updated_at,
    key, key_name, key_digest, parent, pool, priority, not_before, started_at
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, 'running', $8, $9, $10, $11, $11, $12, $13, $14, $15, $16, $17, $18,
    CASE WHEN $10 THEN NULL ELSE statement_timestamp() END
)

-- name: run_by_key
SELECT id, key_digest FROM runs WHERE key_name = $1

-- name: run_number
SELECT number FROM runs WHERE name = $1

-- name: take
UPDATE runs SET epoch = epoch + 1, owner = $2, runnable = false, status = 'running', ended_by = NULL, wake_at = NULL,
    started_at = coalesce(started_at, statement_timestamp()), ended_at = NULL, erased_at = NULL
WHERE number = $1

-- name: hold_tenant
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))

-- name: at_work
SELECT count(*) FROM runs
WHERE hashtextextended(tenant, 0) = hashtextextended($1, 0) AND tenant = $1 AND owner IS NOT NULL AND number <> $2

-- name: started_lately
SELECT count(*) FROM runs
WHERE hashtextextended(tenant, 0) = hashtextextended($1, 0) AND tenant = $1
    AND started_at > statement_timestamp() - $2::float8 * INTERVAL '1 second'

-- name: change_running
UPDATE runs SET status = $2, ended_by = $3, wake_at = $4, updated_at = $5 WHERE number = $1

-- name: change_leaves
UPDATE runs SET status = $2, ended_by = $3, wake_at = $4, updated_at = $5, owner = NULL
WHERE number = $1

-- name: change_ended
UPDATE runs SET status = $2, ended_by = $3, wake_at = $4, updated_at = $5, ended_at = $5, owner = NULL, runnable = false
WHERE number = $1

-- name: runnable
UPDATE runs SET runnable = (status IN ('running', 'paused')), updated_at = $2 WHERE number = $1

-- name: wake
UPDATE runs SET runnable = true WHERE interaction = $1 AND id = $2 AND status IN ('running', 'paused')

-- name: wake_all
WITH RECURSIVE above (number, parent) AS (
    SELECT number, parent FROM runs WHERE interaction = $1 AND id = $2
    UNION ALL
    SELECT r.number, r.parent FROM above JOIN runs r ON r.interaction = $1 AND r.id = above.parent
)
UPDATE runs SET runnable = true WHERE number IN (SELECT number FROM above) AND status IN ('running', 'paused')

-- name: release_run
UPDATE runs SET owner = NULL, runnable = true
WHERE number = $1

-- name: new_lock
INSERT INTO locks (name, tenant, lock, owner) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING

-- name: lock_holder
SELECT owner FROM locks WHERE name = $1 FOR UPDATE

-- name: hold_locks
SELECT name, owner FROM locks WHERE name = ANY($1) FOR SHARE

-- name: lock
UPDATE locks SET owner = $2 WHERE name = $1

-- name: unlock
DELETE FROM locks WHERE name = $1 AND owner = $2

-- name: beat
WITH forgotten AS (
    DELETE FROM workers WHERE owner <> $1 AND beat_at < statement_timestamp() - $4::float8 * INTERVAL '1 second'
), gone AS (
    DELETE FROM agents WHERE name <> ALL($5::text[])
        AND until < statement_timestamp() - $4::float8 * INTERVAL '1 second'
), here AS (
    INSERT INTO agents AS a (name, until)
    SELECT name, statement_timestamp() + $3::float8 * INTERVAL '1 second' FROM unnest($5) AS name ORDER BY name
    ON CONFLICT (name) DO UPDATE SET until = greatest(a.until, excluded.until)
)
INSERT INTO workers AS w (owner, beat_at, every, since) VALUES ($1, statement_timestamp(), $2, statement_timestamp())
ON CONFLICT (owner) DO UPDATE SET
    since = CASE WHEN excluded.beat_at - w.beat_at > $3::float8 * INTERVAL '1 second' THEN excluded.since
        ELSE w.since END,
    beat_at = excluded.beat_at, every = excluded.every

-- name: agents
SELECT name, until >= statement_timestamp() FROM agents ORDER BY name

-- name: leave
DELETE FROM workers WHERE owner = $1

-- name: workers
SELECT owner, extract(epoch FROM statement_timestamp() - beat_at)::float8, every,
    extract(epoch FROM beat_at - since)::float8
FROM workers

-- name: tell
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)

-- name: listening
SELECT pg_advisory_lock_shared($1::int4, hashtext($2))

-- name: listened
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = $1::int4::oid AND objid = hashtext($2)::oid AND objsubid = 2 AND pid <> $3
)

-- name: approvals_for_start
SELECT id, step, idx, choice, consumed FROM approvals WHERE run = $1 AND id = ANY($2)

-- name: consume
UPDATE approvals SET consumed = true WHERE run = $1 AND id = $2

-- name: new_approval
INSERT INTO approvals (run, id, call_id, step, idx, thread, asked, open) VALUES ($1, $2, $3, $4, $5, $6, $7, true)

-- name: close_approvals_of_call
UPDATE approvals SET open = false WHERE run = $1 AND open AND step = $2 AND idx = $3

-- name: close_approvals
UPDATE approvals SET open = false WHERE run = $1 AND open

-- name: approvals_of_call
SELECT number, step, idx, thread, asked, decision, open FROM approvals
WHERE run = (SELECT number FROM runs WHERE name = $1) AND call_id = $2
ORDER BY number

-- name: decided
UPDATE approvals SET decision = $2, choice = $3, open = false WHERE number = $1

-- name: new_report
INSERT INTO reports (tenant, run, tool, code, at, report) VALUES ($1, $2, $3, $4, $5, $6)

-- name: kept_digests
SELECT id, digest FROM kept WHERE name = ANY($1)

-- name: kept_head
SELECT number, total, size, erased_at FROM kept WHERE name = $1

-- name: new_kept
INSERT INTO kept (name, tenant, id, run, total, size, digest) VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: new_piece
INSERT INTO kept_pieces (place, piece) VALUES ((currval('kept_number_seq') << 32) + $1, $2)

-- name: with_below
WITH RECURSIVE below (number, interaction, id, status) AS (
    SELECT number, interaction, id, status FROM runs WHERE number = $1
    UNION ALL
    SELECT r.number, r.interaction, r.id, r.status
    FROM below JOIN runs r ON r.interaction = below.interaction AND r.parent = below.id
)
SELECT number, id, status FROM below

-- name: erase_entries
UPDATE entries SET content = NULL, erased_at = $1
WHERE run = $2 AND content IS NOT NULL AND place BETWEEN $3::bigint << 32 AND ($3 << 32) + 4294967295

-- name: erase_pieces
DELETE FROM kept_pieces USING kept
WHERE kept.run = $1 AND place BETWEEN kept.number << 32 AND (kept.number << 32) + 4294967295

-- name: erase_kept
UPDATE kept SET erased_at = $1 WHERE run = $2 AND erased_at IS NULL

-- name: erase_reports
DELETE FROM reports WHERE run = $1

-- name: erase_approvals
DELETE FROM approvals WHERE run = $1

-- name: erased
UPDATE runs SET erased_at = $2 WHERE number = $1

-- name: run
SELECT r.id, i.id, r.tenant, r.agent, r.status, r.ended_by, r.epoch, r.owner, r.runnable,
    r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority, r.not_before
FROM runs r JOIN interactions i ON i.number = r.interaction
WHERE r.name = $1

-- name: runs
SELECT r.id, i.id, r.tenant, r.agent, r.status, r.ended_by, r.epoch, r.owner, r.runnable,
    r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority, r.not_before
FROM runs r JOIN interactions i ON i.number = r.interaction
WHERE hashtextextended(r.tenant, 0) = hashtextextended($1, 0) AND r.tenant = $1
    AND ($2::bigint IS NULL OR r.number < $2)
    AND ($3::text IS NULL OR r.status = $3)
    AND ($4::text IS NULL OR r.agent = $4)
    AND ($5::text IS NULL OR i.id = $5)
    AND (NOT $6::boolean OR r.parent IS NULL)
ORDER BY r.number DESC LIMIT $7

-- name: owners
WITH RECURSIVE found (owner) AS (
    SELECT min(owner) FROM runs WHERE owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM runs WHERE owner > found.owner) FROM found WHERE owner IS NOT NULL
)
SELECT owner FROM found WHERE owner IS NOT NULL

-- name: open_runs
SELECT r.id, (SELECT i.id FROM interactions i WHERE i.number = r.interaction), r.tenant, r.agent, r.status, r.ended_by,
    r.epoch, r.owner, r.runnable, r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority,
    r.not_before
FROM unnest($1::text[]) AS a (agent) CROSS JOIN LATERAL (
    (
        SELECT * FROM runs
        WHERE runnable AND owner IS NULL AND not_before IS NULL
            AND agent = a.agent AND pool = $2 AND tenant <> ALL($5::text[])
        ORDER BY priority DESC, number LIMIT $4
    )
    UNION ALL (
        SELECT * FROM runs
        WHERE runnable AND owner IS NULL AND not_before <= $3
            AND agent = a.agent AND pool = $2 AND tenant <> ALL($5)
        ORDER BY priority DESC, number LIMIT $4
    )
    UNION ALL (
        SELECT * FROM runs
        WHERE NOT runnable AND owner IS NULL AND wake_at <= $3
            AND agent = a.agent AND pool = $2 AND tenant <> ALL($5)
        ORDER BY priority DESC, number LIMIT $4
    )
    UNION ALL (
        SELECT * FROM runs
        WHERE owner = ANY($6::text[]) AND agent = a.agent AND pool = $2 AND tenant <> ALL($5)
        ORDER BY priority DESC, number LIMIT $4
    )
) r
ORDER BY r.priority DESC, r.number LIMIT $4

-- name: posted
SELECT id FROM runs WHERE runnable AND owner = $1

-- name: counts
SELECT
    (SELECT count(*) FROM runs WHERE owner IS NOT NULL AND agent = ANY($1::text[]) AND pool = $2
            AND ($3::text IS NULL OR tenant = $3)),
    (SELECT count(*) FROM runs
        WHERE runnable AND owner IS NULL AND not_before IS NULL AND agent = ANY($1) AND pool = $2
            AND ($3::text IS NULL OR tenant = $3))
    + (SELECT count(*) FROM runs
        WHERE runnable AND owner IS NULL AND not_before IS NOT NULL AND agent = ANY($1) AND pool = $2
            AND ($3::text IS NULL OR tenant = $3)),
    (SELECT count(*) FROM runs WHERE status = 'paused' AND NOT runnable AND agent = ANY($1) AND pool = $2
            AND ($3::text IS NULL OR tenant = $3)),
    (SELECT count(*) FROM approvals a JOIN runs r ON r.number = a.run
        WHERE a.open AND r.agent = ANY($1) AND r.pool = $2 AND ($3 IS NULL OR r.tenant = $3))

-- name: to_erase
SELECT tenant, id FROM runs WHERE agent = ANY($1::text[]) AND ended_at < $2 AND erased_at IS NULL
ORDER BY ended_at LIMIT $3

-- name: entries
SELECT e.place & 4294967295, e.body, e.content
FROM interactions i LEFT JOIN entries e
    ON e.place > (i.number << 32) + $2 AND e.place <= (i.number << 32) + 4294967295
WHERE i.name = $1
ORDER BY e.place

-- name: approvals
SELECT a.asked FROM runs r JOIN approvals a ON a.run = r.number AND a.open
WHERE hashtextextended(r.tenant, 0) = hashtextextended($1, 0) AND r.tenant = $1 ORDER BY a.number

-- name: approvals_of_run
WITH RECURSIVE below (number, interaction, id) AS (
    SELECT number, interaction, id FROM runs WHERE number = $1
    UNION ALL
    SELECT r.number, r.interaction, r.id FROM below JOIN runs r ON r.interaction = below.interaction AND r.parent = below.id
)
SELECT a.asked FROM below JOIN approvals a ON a.run = below.number AND a.open ORDER BY a.number

-- name: reports
SELECT p.report FROM reports p
WHERE hashtextextended(p.tenant, 0) = hashtextextended($1, 0) AND p.tenant = $1
    AND ($2::bigint IS NULL OR p.run = $2)
    AND ($3::text IS NULL OR p.tool = $3)
    AND ($4::text IS NULL OR p.code = $4)
    AND p.at BETWEEN coalesce($5, '-9223372036854775808'::bigint) AND coalesce($6, 9223372036854775807)
    AND (NOT $8::boolean OR EXISTS (SELECT 1 FROM runs r WHERE r.number = p.run AND r.parent IS NULL))
ORDER BY p.at DESC, p.number DESC LIMIT $7

-- name: report_groups
SELECT p.tool, p.code, count(*), min(p.at), max(p.at) AS last FROM reports p
WHERE hashtextextended(p.tenant, 0) = hashtextextended($1, 0) AND p.tenant = $1
    AND ($2::bigint IS NULL OR p.run = $2)
    AND ($3::text IS NULL OR p.tool = $3)
    AND ($4::text IS NULL OR p.code = $4)
    AND p.at BETWEEN coalesce($5, '-9223372036854775808'::bigint) AND coalesce($6, 9223372036854775807)
    AND (NOT $8::boolean OR EXISTS (SELECT 1 FROM runs r WHERE r.number = p.run AND r.parent IS NULL))
GROUP BY p.tool, p.code ORDER BY last DESC, p.tool, coalesce(p.code, '') LIMIT $7

-- name: pieces
SELECT place & 4294967295, piece FROM kept_pieces
WHERE place >= coalesce(
    (SELECT max(place) FROM kept_pieces WHERE place BETWEEN $1::bigint << 32 AND ($1 << 32) + $2), $1 << 32
) AND place < ($1 << 32) + $3
ORDER BY place

-- name: rows
SELECT place, tenant, id, run_id, kind, sequence, following, body, content, erased_at, hash
FROM (
    SELECT e.*, i.tenant, i.id, r.id AS run_id, row_number() OVER by_place AS line,
        sum(octet_length(body) + coalesce(octet_length(content), 0)) OVER by_place AS bytes
    FROM (SELECT * FROM entries WHERE place > $1 ORDER BY place LIMIT $2) e
    JOIN runs r ON r.number = e.run JOIN interactions i ON i.number = e.place >> 32
    WINDOW by_place AS (ORDER BY place)
) page
WHERE line = 1 OR bytes <= $3
ORDER BY place

-- name: kept_texts
SELECT number, tenant, id, size, digest, erased_at FROM kept WHERE number > $1 ORDER BY number LIMIT 1

-- name: heads
SELECT tenant, id, entry, hash FROM interactions WHERE entry > 0 ORDER BY number

-- name: version
SELECT pg_current_snapshot()::text

-- name: append_if
WITH tip AS (
    UPDATE interactions SET version = version + 1, entry = $3, hash = $4, following = $5
    WHERE number = $1 AND version = $2
    RETURNING number
)
INSERT INTO entries (place, run, kind, step, idx, slot, sequence, following, body, content, hash)
SELECT added.* FROM tip CROSS JOIN (VALUES ROWS) AS added

-- name: append_and_end_if
WITH tip AS (
    UPDATE interactions SET version = version + 1, entry = $3, hash = $4, following = $5,
        open_run = nullif(open_run, $6)
    WHERE number = $1 AND version = $2
    RETURNING number
), ended AS (
    UPDATE runs SET status = $7, ended_by = $8, wake_at = $9, updated_at = $10, ended_at = $10, owner = NULL,
        runnable = false
    FROM tip WHERE runs.number = $6
)
INSERT INTO entries (place, run, kind, step, idx, slot, sequence, following, body, content, hash)
SELECT added.* FROM tip CROSS JOIN (VALUES ROWS) AS added

-- name: tips
SELECT tenant, id, entry FROM interactions WHERE name = ANY($1)

-- name: add_key
INSERT INTO keys (name, id, tenant, "user", roles, scopes, digest, created_at, expires_at, revoked_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: key
SELECT id, tenant, "user", roles, scopes, digest, created_at, expires_at, revoked_at FROM keys WHERE digest = $1

-- name: keys
SELECT id, tenant, "user", roles, scopes, digest, created_at, expires_at, revoked_at FROM keys
WHERE hashtextextended(tenant, 0) = hashtextextended($1, 0) AND tenant = $1
ORDER BY number

-- name: revoke_key
UPDATE keys SET revoked_at = coalesce(revoked_at, $2) WHERE name = $1
RETURNING id, tenant, "user", roles, scopes, digest, created_at, expires_at, revoked_at

-- name: has_keys
SELECT 1 FROM keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1) LIMIT 1
