\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.push('default', '"work"', headers => '{"request_id": "r"}') AS id \gset
SELECT token FROM queue.claim('1 minute', worker => 'w1') \gset
SELECT queue.complete(:id, :token, '{"answer": 42}');
SELECT count(*) FROM queue.tasks;
SELECT state, payload, headers, result, worker, attempt, token, finished_at >= claimed_at AS in_order FROM queue.history;

-- Never a second time.
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :token));
SELECT pg_temp.refused('SELECT queue.complete(999999, 1)');

-- A stale token changes nothing, and takes the worker's own work with it.
CREATE TABLE effects (id bigint);
SELECT queue.push('default') AS id \gset
SELECT token AS stale FROM queue.claim('1 minute') \gset
SELECT pg_temp.expire(:id);
SELECT token AS fresh FROM queue.claim('1 minute') \gset
\set ON_ERROR_ROLLBACK off
BEGIN;
INSERT INTO effects VALUES (:id);
SELECT queue.complete(:id, :stale);
COMMIT;
SELECT count(*) AS effects FROM effects;
SELECT state, token FROM queue.tasks WHERE id = :id;
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :stale));
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :fresh + 1));
-- With the right token the work and the completion stand or fall together.
BEGIN;
INSERT INTO effects VALUES (:id);
SELECT queue.complete(:id, :fresh);
COMMIT;
SELECT count(*) AS effects FROM effects;

-- A lease that ran out but was not taken back is still the worker's.
SELECT queue.push('default') AS id \gset
SELECT token FROM queue.claim('1 minute') \gset
SELECT pg_temp.expire(:id);
SELECT queue.complete(:id, :token);

-- Many at once: stale ones are left out, the others are not disturbed.
SELECT queue.push_many('default', ARRAY['1', '2', '3', '4']::jsonb[]);
SELECT array_agg(id ORDER BY id DESC) AS ids, array_agg(token ORDER BY id DESC) AS tokens
FROM queue.claim('1 minute', max_tasks => 4) \gset
SELECT pg_temp.expire((:'ids'::bigint[])[2]);
SELECT queue.reap();
SELECT queue.complete_many(:'ids', :'tokens', ARRAY['"r4"', '"r3"', '"r2"', '"r1"']::jsonb[]) - min(id) + 1 AS nth
FROM queue.all_tasks WHERE id = ANY (:'ids') GROUP BY ();
SELECT payload, result FROM queue.history WHERE id = ANY (:'ids') ORDER BY id;
SELECT queue.complete_many(:'ids', :'tokens');
SELECT queue.complete_many('{}', '{}');

-- Complete one and claim the next in one go.
SELECT queue.purge('default');
SELECT queue.push_many('default', ARRAY['"first"', '"second"']::jsonb[]);
SELECT id, token FROM queue.claim('1 minute') \gset
SELECT id AS next, token AS next_token, payload FROM queue.complete_and_claim(:id, :token, '1', '1 minute', worker => 'w') \gset
SELECT :'payload' AS payload;
SELECT * FROM queue.complete_and_claim(:next, :next_token);
SELECT pg_temp.refused(format('SELECT queue.complete_and_claim(%s, %s)', :id, :token));

-- A queue may do without a history.
SELECT queue.create('quiet', '{"keep_history": false}');
SELECT queue.push('quiet') AS id \gset
SELECT token FROM queue.claim('1 minute', 'quiet') \gset
SELECT queue.complete(:id, :token);
SELECT count(*) FROM queue.all_tasks WHERE id = :id;
