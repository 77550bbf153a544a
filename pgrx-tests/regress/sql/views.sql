\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.create('mail', '{"max_attempts": 1}');
SELECT queue.push_many('mail', ARRAY['1', '2', '3', '4', '5', '6']::jsonb[]);
SELECT queue.push('mail', delay => '1 hour');
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'mail', 2, 'w1');
SELECT queue.fail(id, token, 'x') FROM queue.claim('1 minute', 'mail', 1, 'w1');
SELECT count(*) FROM queue.claim('1 minute', 'mail', 2, 'w2');
SELECT queue.cancel(id) FROM queue.push('mail') AS id;
SELECT queue, paused, queued, scheduled, waiting, running, dead, oldest_due_age > '0' AS waits, completed_last_hour,
       cancelled_last_hour, failed_last_hour, completed_per_second
FROM queue.stats ORDER BY queue;
SELECT worker, queue, running, working_since <= now() AS since, next_lease_until > now() AS until, overdue FROM queue.workers;
SELECT state, count(*), count(finished_at) AS finished FROM queue.all_tasks GROUP BY state ORDER BY state;
SELECT state, payload FROM queue.get(1);
SELECT pg_temp.refused('SELECT queue.get(999999)');
