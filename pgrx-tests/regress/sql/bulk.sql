\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.create('mail', '{"max_attempts": 1}'), queue.create('slow');
SELECT count(queue.push('mail', jsonb_build_object('n', n), headers => jsonb_build_object('user', 'u' || n % 2))) FROM generate_series(1, 6) AS n;
SELECT count(queue.push('slow', jsonb_build_object('n', n), delay => '1 hour')) FROM generate_series(7, 9) AS n;
CREATE VIEW tasks AS SELECT id, queue, CASE WHEN state = 'queued' AND run_at > now() THEN 'scheduled' ELSE state END AS state, priority, payload FROM queue.all_tasks ORDER BY id;

-- A dry run changes nothing.
CALL queue.cancel_where('{"queue": "mail"}', dry_run => true);
SELECT state, count(*) FROM tasks GROUP BY 1 ORDER BY 1;
-- Each option of a filter.
CALL queue.cancel_where('{"queue": "mail", "headers": {"user": "u1"}, "payload": {"n": 3}}', dry_run => true);
CALL queue.cancel_where('{"state": "scheduled"}', dry_run => true);
CALL queue.cancel_where('{"ids": [1, 2, 99]}', dry_run => true);
CALL queue.cancel_where('{"ids": []}', dry_run => true);
CALL queue.cancel_where('{"older_than": "1 hour"}', dry_run => true);
CALL queue.cancel_where('{"newer_than": "1 hour"}', dry_run => true);
-- The DateStyle and IntervalStyle of the session make no difference.
SET datestyle = 'SQL, DMY';
SET timezone = 'Asia/Shanghai';
CALL queue.cancel_where('{"older_than": "1 hour"}', dry_run => true);
CALL queue.cancel_where('{"state": "scheduled"}', dry_run => true);
RESET datestyle;
RESET timezone;
UPDATE queue.tasks SET created_at = created_at - interval '2 hours', key = 'k-' || id, group_key = 'g_' || id WHERE id IN (1, 7);
CALL queue.cancel_where('{"older_than": "1 hour", "newer_than": "3 hours"}', dry_run => true);
CALL queue.cancel_where('{"key": "k-%"}', dry_run => true);
CALL queue.cancel_where('{"group_key": "g\\_7"}', dry_run => true);
CALL queue.cancel_where('{"all": true}', dry_run => true);

-- Cancelling: queued tasks are cancelled, running ones are asked to stop. Small batches do the same.
SELECT id FROM queue.claim('1 minute', 'mail', 2, worker => 'w1');
CALL queue.cancel_where('{"queue": "mail", "worker": "w1"}');
CALL queue.cancel_where('{"queue": "mail"}', batch_size => 2);
CALL queue.cancel_where('{"queue": "mail"}');
SELECT id, state FROM tasks WHERE queue = 'mail';
SELECT id, cancel_requested_at IS NOT NULL AS asked FROM queue.tasks WHERE queue = 'mail' ORDER BY id;
SELECT queue.confirm_cancel(1, 1), queue.confirm_cancel(2, 1);

-- Due at once.
CALL queue.run_now_where('{"payload": {"n": 8}}');
CALL queue.run_now_where('{"payload": {"n": 8}}');
SELECT id, state FROM tasks WHERE queue = 'slow';
SELECT queue.push('slow') AS id \gset
SELECT queue.fail(id, token, 'smtp: 451 try later', retry_in => '1 day') FROM queue.claim('1 minute', 'slow');
CALL queue.run_now_where('{"error": "smtp: 4%"}');

-- Changes the priority, and moves to another queue.
CALL queue.reprioritise_where('{"queue": "slow", "state": "scheduled"}', -5);
CALL queue.reprioritise_where('{"queue": "slow"}', -5, batch_size => 1);
CALL queue.reprioritise_where('{"queue": "slow"}', -5);
SELECT id, token FROM queue.claim('1 minute', 'slow') \gset
CALL queue.reprioritise_where(jsonb_build_object('ids', jsonb_build_array(:id)), 9);
CALL queue.move_where('{"queue": "slow"}', 'mail', dry_run => true);
CALL queue.move_where('{"queue": "slow"}', 'mail');
CALL queue.move_where('{"all": true}', 'mail');
SELECT id, queue, state, priority FROM tasks WHERE state NOT IN ('cancelled', 'completed');
SELECT queue.release(:id, :token);

-- Redrives some dead letters, into their queue or another one.
SELECT count(queue.fail(id, token, 'bounced ' || id)) FROM queue.claim('1 minute', 'mail', 10);
SELECT count(queue.fail(id, token, 'no such user', permanent => true)) FROM queue.claim('1 minute', 'slow', 10);
SELECT id, queue, errors -> -1 ->> 'error' AS error FROM queue.dead_letters ORDER BY id;
CALL queue.redrive_where('{"error": "bounced%"}', dry_run => true);
CALL queue.redrive_where('{"error": "bounced%"}', 'slow', batch_size => 1);
CALL queue.redrive_where('{"queue": "slow"}');
SELECT id, queue, state FROM tasks WHERE state NOT IN ('cancelled', 'completed');

-- Purges tasks or dead letters, depending on the filter.
SELECT count(queue.fail(id, token, 'x', permanent => true)) FROM queue.claim('1 minute', 'slow', 2);
SELECT count(queue.push('mail')) FROM generate_series(1, 3);
CALL queue.purge_where('{"state": "failed"}', dry_run => true);
CALL queue.purge_where('{"queue": "mail"}');
CALL queue.purge_where('{"all": true}', dry_run => true);
CALL queue.purge_where('{"all": true}', batch_size => 1);
CALL queue.purge_where('{"all": true}');
SELECT count(*) FROM queue.tasks;
SELECT count(*) FROM queue.dead_letters;

-- A task whose key is taken in the other queue stays, and the others are moved, also in batches of one.
SELECT queue.create('fast');
SELECT count(queue.push('mail', key => key, payload => to_jsonb(key), key_ttl => '1 day')) FROM unnest('{a, b, c, d}'::text[]) AS key;
SELECT queue.push('fast', '"c too"', key => 'c') > 0 AS fast, queue.push('slow', '"b there"', key => 'b') > 0 AS slow, queue.push('slow', '"done"', key => 'd', key_ttl => '1 day') > 0 AS done;
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'slow', 2);
SELECT queue.push('slow', '"b there"', key => 'b') > 0 AS again;
CALL queue.move_where('{"key": "_"}', 'slow', dry_run => true);
CALL queue.move_where('{"key": "_"}', 'slow', batch_size => 1);
CALL queue.move_where('{"key": "_"}', 'slow');
SELECT queue, key, payload FROM queue.tasks ORDER BY id;
SELECT k.queue, k.key, k.task_id = t.id AS its_own, k.ttl FROM queue_internal.keys AS k LEFT JOIN queue.tasks AS t USING (queue, key) ORDER BY 1, 2;
CALL queue.purge_where('{"all": true}');

-- In a transaction block, all batches belong to that transaction.
SELECT count(queue.push('mail')) FROM generate_series(1, 5);
BEGIN;
CALL queue.cancel_where('{"queue": "mail"}', batch_size => 2);
ROLLBACK;
SELECT count(*) FROM queue.tasks;

-- An invalid filter is refused, and nothing changes.
CREATE FUNCTION pg_temp.said(filter jsonb) RETURNS text LANGUAGE sql AS $$ SELECT pg_temp.refused(format('CALL queue.purge_where(%L)', filter)) $$;
SELECT pg_temp.said('{}');
SELECT pg_temp.said('{"queus": "mail"}');
SELECT pg_temp.said('{"queue": "nowhere"}');
SELECT pg_temp.said('{"state": "running"}');
SELECT pg_temp.said('{"older_than": "soon"}');
SELECT pg_temp.said('{"ids": [1, "2"]}');
SELECT pg_temp.said('{"key": "100\\"}');
SELECT pg_temp.said('{"all": false}');
SELECT count(*) FROM queue.tasks;

-- Each batch is committed: each has its own transaction id.
SELECT queue.create('batches', '{"max_attempts": 1}');
SELECT count(queue.push('batches', to_jsonb(n))) FROM generate_series(1, 12) AS n;
SELECT count(queue.fail(id, token, 'no')) FROM queue.claim('1 minute', 'batches', 6);
SELECT pg_snapshot_xmax(pg_current_snapshot()) AS before \gset
CALL queue.purge_where('{"queue": "batches"}', batch_size => 2);
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - :before >= 6 AS one_for_each;
