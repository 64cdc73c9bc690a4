-- One statement under each name. `{now}` is the time of the machine, in microseconds since 1970.
-- `? << 32` is the place before an interaction's first entry.

-- name: run_and_tip
SELECT r.number, r.interaction, r.thread, r.parent, r.epoch, r.owner, r.updated_at, e.place, e.hash, e.following
FROM runs r
LEFT JOIN entries e ON e.place = (
    SELECT max(place) FROM entries WHERE place BETWEEN r.interaction << 32 AND (r.interaction << 32) + 4294967295
)
WHERE r.tenant = ? AND r.id = ?

-- name: append
-- -1 stands for NULL where an entry is about no call.
INSERT INTO entries (place, run, kind, step, idx, slot, sequence, following, body, content, hash)
VALUES (?, ?, ?, nullif(?, -1), nullif(?, -1), nullif(?, -1), ?, ?, ?, ?, ?)

-- name: if_held
WHERE (SELECT epoch FROM runs WHERE number = ? AND owner IS NOT NULL) = ?

-- name: calls_since
SELECT step, idx, slot FROM entries WHERE place > ? AND place <= ? AND run = ? AND slot IS NOT NULL ORDER BY place

-- name: has_lock
SELECT 1 FROM runs r JOIN locks l ON l.tenant = r.tenant AND l.owner = r.owner AND l.name = ? WHERE r.number = ?

-- name: is_asking
SELECT 1 FROM approvals WHERE run = ? AND open = 1 LIMIT 1

-- name: interaction
SELECT number, open_run, participants FROM interactions WHERE tenant = ? AND id = ?

-- name: new_interaction
INSERT INTO interactions (tenant, id, participants, created_at) VALUES (?, ?, ?, ?)

-- name: begin_interaction
INSERT INTO interactions (tenant, id, participants, created_at, key_digest) VALUES (?, ?, ?, ?, ?)

-- name: interaction_digest
SELECT key_digest FROM interactions WHERE tenant = ? AND id = ?

-- name: sent
SELECT digest, status FROM sent WHERE run = ? AND key = ?

-- name: new_sent
INSERT INTO sent (run, key, digest, status) VALUES (?, ?, ?, ?)

-- name: join
UPDATE interactions SET participants = ? WHERE number = ?

-- name: interactions
SELECT i.id, i.created_at, i.participants, r.id
FROM interactions i LEFT JOIN runs r ON r.number = i.open_run
WHERE i.tenant = :tenant AND (:id IS NULL OR i.id = :id) AND (:before IS NULL OR i.number < :before)
ORDER BY i.number DESC LIMIT :limit

-- name: occupy
UPDATE interactions SET open_run = ? WHERE number = ?

-- name: release
UPDATE interactions SET open_run = NULL WHERE number = ? AND open_run = ?

-- name: new_run
INSERT INTO runs (
    tenant, id, interaction, thread, agent, status, epoch, owner, runnable, created_at, updated_at, key,
    key_digest, parent, pool, priority, not_before, started_at
) VALUES (?1, ?2, ?3, ?4, ?5, 'running', ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, iif(?8, NULL, {now}))

-- name: tip
SELECT place, hash, following FROM entries WHERE place BETWEEN ? << 32 AND (? << 32) + 4294967295
ORDER BY place DESC LIMIT 1

-- name: run_by_key
SELECT id, key_digest FROM runs WHERE tenant = ? AND key = ?

-- name: run_number
SELECT number, interaction, status, parent FROM runs WHERE tenant = ? AND id = ?

-- name: claim
UPDATE runs SET epoch = epoch + 1, owner = ?, runnable = 0, status = 'running', wake_at = NULL,
    started_at = coalesce(started_at, {now})
WHERE tenant = ? AND id = ? AND epoch = ? AND status IN ('running', 'paused')

-- name: at_work
SELECT count(*) FROM runs INDEXED BY runs_owned
WHERE owner IS NOT NULL AND tenant = ? AND number <> (SELECT number FROM runs WHERE tenant = ? AND id = ?)

-- name: started_lately
SELECT count(*) FROM runs WHERE tenant = ? AND started_at > {now} - ?

-- name: change_running
UPDATE runs SET status = ?, ended_by = ?, wake_at = ?, updated_at = ? WHERE number = ?

-- name: change_leaves
UPDATE runs SET status = ?, ended_by = ?, wake_at = ?, updated_at = ?, owner = NULL WHERE number = ?

-- name: change_ended
UPDATE runs SET status = ?1, ended_by = ?2, wake_at = ?3, updated_at = ?4, ended_at = ?4, owner = NULL, runnable = 0
WHERE number = ?5

-- name: runnable
UPDATE runs SET runnable = (status IN ('running', 'paused')), updated_at = ? WHERE number = ?

-- name: wake
UPDATE runs SET runnable = 1 WHERE interaction = ? AND id = ? AND status IN ('running', 'paused')

-- name: wake_all
WITH RECURSIVE above (number, parent) AS (
    SELECT number, parent FROM runs WHERE interaction = ?1 AND id = ?2
    UNION ALL
    SELECT r.number, r.parent FROM above JOIN runs r ON r.interaction = ?1 AND r.id = above.parent
)
UPDATE runs SET runnable = 1 WHERE number IN (SELECT number FROM above) AND status IN ('running', 'paused')

-- name: release_run
UPDATE runs SET owner = NULL, runnable = 1
WHERE tenant = ? AND id = ? AND epoch = ? AND owner IS NOT NULL

-- name: reopen
UPDATE runs SET epoch = epoch + 1, owner = ?, runnable = 0, status = 'running', ended_by = NULL, wake_at = NULL,
    ended_at = NULL, erased_at = NULL
WHERE number = ?

-- name: lock_holder
SELECT owner FROM locks WHERE tenant = ? AND name = ?

-- name: lock
INSERT OR REPLACE INTO locks (tenant, name, owner) VALUES (?, ?, ?)

-- name: unlock
DELETE FROM locks WHERE tenant = ? AND name = ? AND owner = ?

-- name: beat
INSERT INTO workers (owner, beat_at, every, since) VALUES (:owner, {now}, :every, {now})
ON CONFLICT (owner) DO UPDATE SET
    since = CASE WHEN abs(excluded.beat_at - beat_at) > :gap THEN excluded.since ELSE since END,
    beat_at = excluded.beat_at, every = excluded.every

-- name: forget_workers
DELETE FROM workers WHERE owner <> ? AND beat_at < {now} - ?

-- name: has_agent
INSERT INTO agents (name, until) VALUES (?, {now} + ?)
ON CONFLICT (name) DO UPDATE SET until = max(until, excluded.until)

-- name: forget_agents
DELETE FROM agents WHERE until < {now} - ?

-- name: agents
SELECT name, until >= {now} FROM agents ORDER BY name

-- name: leave
DELETE FROM workers WHERE owner = ?

-- name: workers
SELECT owner, ({now} - beat_at) / 1e6, every, (beat_at - since) / 1e6 FROM workers

-- name: approval_for_start
SELECT number, step, idx, choice, consumed FROM approvals WHERE run = ? AND id = ?

-- name: consume
UPDATE approvals SET consumed = 1 WHERE run = ? AND id = ?

-- name: new_approval
INSERT INTO approvals (run, id, call_id, step, idx, thread, asked, open) VALUES (?, ?, ?, ?, ?, ?, ?, 1)

-- name: close_approvals_of_call
UPDATE approvals SET open = 0 WHERE run = ? AND open = 1 AND step = ? AND idx = ?

-- name: close_approvals
UPDATE approvals SET open = 0 WHERE run = ? AND open = 1

-- name: approvals_of_call
SELECT number, step, idx, thread, asked, decision, open FROM approvals WHERE run = ? AND call_id = ?
ORDER BY number

-- name: decided
UPDATE approvals SET decision = ?, choice = ?, open = 0 WHERE number = ?

-- name: new_report
INSERT INTO reports (tenant, run, tool, code, at, report) VALUES (?, ?, ?, ?, ?, ?)

-- name: kept_head
SELECT number, total, size, digest, erased_at FROM kept WHERE tenant = ? AND id = ?

-- name: new_kept
INSERT INTO kept (tenant, id, run, total, size, digest) VALUES (?, ?, ?, ?, ?, ?)

-- name: new_piece
INSERT INTO kept_pieces (place, piece) VALUES (?, ?)

-- name: with_below
WITH RECURSIVE below (number, interaction, id, status) AS (
    SELECT number, interaction, id, status FROM runs WHERE number = ?
    UNION ALL
    SELECT r.number, r.interaction, r.id, r.status
    FROM below JOIN runs r ON r.interaction = below.interaction AND r.parent = below.id
)
SELECT number, id, status FROM below

-- name: erase_entries
UPDATE entries SET content = NULL, erased_at = ?
WHERE run = ? AND content IS NOT NULL AND place BETWEEN ? << 32 AND (? << 32) + 4294967295

-- name: kept_of_run
SELECT number FROM kept WHERE run = ? AND erased_at IS NULL

-- name: erase_pieces_of
DELETE FROM kept_pieces WHERE place BETWEEN ? << 32 AND (? << 32) + 4294967295

-- name: erase_kept
UPDATE kept SET erased_at = ? WHERE run = ? AND erased_at IS NULL

-- name: erase_reports
DELETE FROM reports WHERE run = ?

-- name: erase_approvals
DELETE FROM approvals WHERE run = ?

-- name: erased
UPDATE runs SET erased_at = ? WHERE number = ?

-- name: run
SELECT r.id, i.id, r.tenant, r.agent, r.status, r.ended_by, r.epoch, r.owner, r.runnable,
    r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority, r.not_before
FROM runs r JOIN interactions i ON i.number = r.interaction
WHERE r.tenant = ? AND r.id = ?

-- name: runs
SELECT r.id, i.id, r.tenant, r.agent, r.status, r.ended_by, r.epoch, r.owner, r.runnable,
    r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority, r.not_before
FROM runs r JOIN interactions i ON i.number = r.interaction
WHERE r.tenant = :tenant
    AND (:before IS NULL OR r.number < :before)
    AND (:status IS NULL OR r.status = :status)
    AND (:agent IS NULL OR r.agent = :agent)
    AND (:interaction IS NULL OR i.id = :interaction)
    AND (NOT :roots OR r.parent IS NULL)
ORDER BY r.number DESC LIMIT :limit

-- name: owners
WITH RECURSIVE found (owner) AS (
    SELECT min(owner) FROM runs WHERE owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM runs WHERE owner IS NOT NULL AND owner > found.owner) FROM found WHERE owner IS NOT NULL
)
SELECT owner FROM found WHERE owner IS NOT NULL

-- name: open_runs
SELECT r.id, i.id, r.tenant, r.agent, r.status, r.ended_by, r.epoch, r.owner, r.runnable,
    r.created_at, r.updated_at, r.wake_at, r.key, r.parent, r.pool, r.priority, r.not_before, r.number
FROM runs r JOIN interactions i ON i.number = r.interaction
WHERE r.number IN (
    SELECT * FROM (
        SELECT number FROM runs
        WHERE runnable = 1 AND owner IS NULL AND not_before IS NULL
            AND agent = :agent AND pool = :pool AND tenant NOT IN ({without})
        ORDER BY priority DESC, number LIMIT :limit
    )
    UNION ALL SELECT * FROM (
        SELECT number FROM runs
        WHERE runnable = 1 AND owner IS NULL AND not_before IS NOT NULL AND not_before <= :now
            AND agent = :agent AND pool = :pool AND tenant NOT IN ({without})
        ORDER BY priority DESC, number LIMIT :limit
    )
    UNION ALL SELECT * FROM (
        SELECT number FROM runs
        WHERE wake_at IS NOT NULL AND wake_at <= :now AND owner IS NULL
            AND agent = :agent AND pool = :pool AND tenant NOT IN ({without})
        ORDER BY priority DESC, number LIMIT :limit
    )
    UNION ALL SELECT * FROM (
        SELECT number FROM runs
        WHERE owner IS NOT NULL AND owner IN ({dead})
            AND agent = :agent AND pool = :pool AND tenant NOT IN ({without})
        ORDER BY priority DESC, number LIMIT :limit
    )
)
ORDER BY r.priority DESC, r.number LIMIT :limit

-- name: posted
SELECT id FROM runs INDEXED BY runs_posted WHERE runnable = 1 AND owner IS NOT NULL AND owner = ?

-- name: counts
SELECT
    (SELECT count(*) FROM runs WHERE owner IS NOT NULL AND agent = :agent AND pool = :pool
            AND (:tenant IS NULL OR tenant = :tenant)),
    (SELECT count(*) FROM runs
        WHERE runnable = 1 AND owner IS NULL AND not_before IS NULL AND agent = :agent AND pool = :pool
            AND (:tenant IS NULL OR tenant = :tenant))
    + (SELECT count(*) FROM runs
        WHERE runnable = 1 AND owner IS NULL AND not_before IS NOT NULL AND agent = :agent AND pool = :pool
            AND (:tenant IS NULL OR tenant = :tenant)),
    (SELECT count(*) FROM runs WHERE status = 'paused' AND runnable = 0 AND agent = :agent AND pool = :pool
            AND (:tenant IS NULL OR tenant = :tenant)),
    (SELECT count(*) FROM approvals a JOIN runs r ON r.number = a.run
        WHERE a.open = 1 AND r.agent = :agent AND r.pool = :pool AND (:tenant IS NULL OR r.tenant = :tenant))

-- name: to_erase
SELECT tenant, id, ended_at FROM runs WHERE agent = ? AND ended_at IS NOT NULL AND ended_at < ? AND erased_at IS NULL
ORDER BY ended_at LIMIT ?

-- name: entries
SELECT place & 4294967295, body, content FROM entries
WHERE place > (? << 32) + ? AND place <= (? << 32) + 4294967295 ORDER BY place

-- name: approvals
SELECT a.asked FROM runs r JOIN approvals a ON a.run = r.number AND a.open = 1
WHERE r.tenant = ? ORDER BY a.number

-- name: approvals_of_run
WITH RECURSIVE below (number, interaction, id) AS (
    SELECT number, interaction, id FROM runs WHERE number = ?
    UNION ALL
    SELECT r.number, r.interaction, r.id FROM below JOIN runs r ON r.interaction = below.interaction AND r.parent = below.id
)
SELECT a.asked FROM below JOIN approvals a ON a.run = below.number AND a.open = 1 ORDER BY a.number

-- name: reports
SELECT p.report FROM reports p
WHERE p.tenant = :tenant
    AND (:run IS NULL OR p.run = :run)
    AND (:tool IS NULL OR p.tool = :tool)
    AND (:code IS NULL OR p.code = :code)
    AND p.at BETWEEN coalesce(:since, -9223372036854775808) AND coalesce(:until, 9223372036854775807)
    AND (NOT :main OR EXISTS (SELECT 1 FROM runs r WHERE r.number = p.run AND r.parent IS NULL))
ORDER BY p.at DESC, p.number DESC LIMIT :limit

-- name: report_groups
SELECT p.tool, p.code, count(*), min(p.at), max(p.at) AS last FROM reports p
WHERE p.tenant = :tenant
    AND (:run IS NULL OR p.run = :run)
    AND (:tool IS NULL OR p.tool = :tool)
    AND (:code IS NULL OR p.code = :code)
    AND p.at BETWEEN coalesce(:since, -9223372036854775808) AND coalesce(:until, 9223372036854775807)
    AND (NOT :main OR EXISTS (SELECT 1 FROM runs r WHERE r.number = p.run AND r.parent IS NULL))
GROUP BY p.tool, p.code ORDER BY last DESC, p.tool, coalesce(p.code, '') LIMIT :limit

-- name: pieces
SELECT place & 4294967295, piece FROM kept_pieces
WHERE place >= coalesce(
    (SELECT max(place) FROM kept_pieces WHERE place BETWEEN :kept << 32 AND (:kept << 32) + :first), :kept << 32
) AND place < (:kept << 32) + :end
ORDER BY place

-- name: rows
SELECT e.place, i.tenant, i.id, r.id, e.kind, e.sequence, e.following, e.body, e.content, e.erased_at, e.hash
FROM entries e JOIN runs r ON r.number = e.run JOIN interactions i ON i.number = e.place >> 32
WHERE e.place > ? ORDER BY e.place

-- name: kept_texts
SELECT number, tenant, id, size, digest, erased_at FROM kept WHERE number > ? ORDER BY number LIMIT 1

-- name: heads
SELECT i.tenant, i.id, e.place & 4294967295, e.hash
FROM interactions i JOIN entries e ON e.place = (
    SELECT max(place) FROM entries WHERE place BETWEEN i.number << 32 AND (i.number << 32) + 4294967295
)
ORDER BY i.number

-- name: tip_of
SELECT max(e.place) & 4294967295
FROM interactions i JOIN entries e ON e.place BETWEEN i.number << 32 AND (i.number << 32) + 4294967295
WHERE i.tenant = ? AND i.id = ?

-- name: add_key
INSERT INTO keys (id, tenant, user, roles, scopes, digest, created_at, expires_at, revoked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: key
SELECT id, tenant, user, roles, scopes, digest, created_at, expires_at, revoked_at FROM keys WHERE digest = ?

-- name: keys
SELECT id, tenant, user, roles, scopes, digest, created_at, expires_at, revoked_at FROM keys WHERE tenant = ?
ORDER BY number

-- name: revoke_key
UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE tenant = ? AND id = ?
RETURNING id, tenant, user, roles, scopes, digest, created_at, expires_at, revoked_at

-- name: has_keys
SELECT 1 FROM keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) LIMIT 1
