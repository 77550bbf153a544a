\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A worker has lost its lease, another worker has the task, and the task was asked to stop. Every call of the first worker
-- with its stale token is refused and changes nothing.
SELECT queue.push('default', '"contested"') AS id \gset
SELECT token AS stale FROM queue.claim('1 minute', worker => 'slow') \gset
SELECT pg_temp.expire(:id);
SELECT token AS fresh FROM queue.claim('1 minute', worker => 'quick') \gset
SELECT queue.cancel(:id);
SELECT md5(t::text) AS before FROM queue.tasks AS t \gset
SELECT split_part(said, E'\n', 1) AS said, split_part(said, E'\n', 2) AS detail, count(*)
FROM unnest(ARRAY['complete(%s, %s)', 'complete(%s, %s, ''1'')', 'complete_and_claim(%s, %s)', 'fail(%s, %s, ''x'')',
                  'fail(%s, %s, ''x'', permanent => true)', 'release(%s, %s)', 'release(%s, %s, ''1 hour'')',
                  'extend(%s, %s)', 'extend(%s, %s, ''1 hour'', ''{}'')', 'confirm_cancel(%s, %s)', 'assert_lease(%s, %s)']) AS call,
     LATERAL pg_temp.refused(format('SELECT queue.' || call, :id, :stale)) AS said
GROUP BY 1, 2;
-- The functions for many tasks leave it out.
SELECT queue.complete_many(ARRAY[:id], ARRAY[:stale]);
SELECT queue.extend_many(ARRAY[:id], ARRAY[:stale], '1 hour', ARRAY['1']::jsonb[]);
SELECT md5(t::text) = :'before' AS unchanged FROM queue.tasks AS t;
SELECT count(*) AS elsewhere FROM queue.all_tasks WHERE state <> 'running';

-- The worker's own writes in the same transaction are rolled back.
CREATE TABLE effects (verb text);
BEGIN; INSERT INTO effects VALUES ('complete'); SELECT queue.complete(:id, :stale); COMMIT;
BEGIN; INSERT INTO effects VALUES ('fail'); SELECT queue.fail(:id, :stale, 'x'); COMMIT;
BEGIN; INSERT INTO effects VALUES ('release'); SELECT queue.release(:id, :stale); COMMIT;
BEGIN; INSERT INTO effects VALUES ('extend'); SELECT queue.extend(:id, :stale); COMMIT;
BEGIN; SELECT queue.assert_lease(:id, :stale); INSERT INTO effects VALUES ('assert_lease'); COMMIT;
SELECT * FROM effects;

-- The worker that holds the lease is not affected.
SELECT cancel_requested FROM queue.extend(:id, :fresh);
BEGIN; SELECT queue.assert_lease(:id, :fresh); INSERT INTO effects VALUES ('assert_lease'); COMMIT;
BEGIN; INSERT INTO effects VALUES ('complete'); SELECT queue.complete(:id, :fresh); COMMIT;
SELECT * FROM effects;

-- A lease that has expired is current until its end: until then the worker may write, extend it and complete the task.
-- After its end it is not, although no other worker has the task yet.
DELETE FROM effects;
SELECT queue.push('default', '"late"') AS late \gset
SELECT token FROM queue.claim('1 minute') \gset
SELECT pg_temp.expire(:late);
BEGIN; SELECT queue.assert_lease(:late, :token); INSERT INTO effects VALUES ('expired'); COMMIT;
SELECT queue.reap();
BEGIN; SELECT queue.assert_lease(:late, :token); INSERT INTO effects VALUES ('ended'); COMMIT;
SELECT * FROM effects;
SELECT split_part(pg_temp.refused(format('SELECT queue.assert_lease(%s, %s)', :late, :token)), E'\n', 2) AS refused;
