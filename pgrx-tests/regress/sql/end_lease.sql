\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- An operator can end a lease early.
SELECT queue.push('default', '"hangs"', max_attempts => 2) AS id \gset
SELECT pg_temp.refused(format('SELECT queue.end_lease(%s)', :id));
SELECT pg_temp.refused('SELECT queue.end_lease(999999)');
SELECT token FROM queue.claim('7 days') \gset
SELECT queue.end_lease(:id);
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :token));
SELECT id = :id AS again FROM queue.claim('7 days');
SELECT queue.end_lease(:id);
SELECT state, jsonb_path_query_array(errors, '$[*].error') AS errors FROM queue.get(:id);
-- A task that was asked to stop is cancelled.
SELECT queue.push('default') AS id \gset
SELECT FROM queue.claim('7 days');
SELECT queue.cancel(:id), queue.end_lease(:id);
