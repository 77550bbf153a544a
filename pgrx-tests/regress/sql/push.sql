\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Only the name of the queue is required.
SELECT queue.push('default');
SELECT id, queue, state, priority, attempt, max_attempts, token, lease_until, worker, headers, payload,
       run_at <= clock_timestamp() AS due
FROM queue.tasks;

-- All arguments.
SELECT queue.push('default', '{"to": "a@example.com"}', priority => -5, delay => '1 hour', max_attempts => 3,
                  headers => '{"request_id": "r-1", "user": "u-1"}');
SELECT id, priority, max_attempts, headers, payload, run_at - created_at BETWEEN '59 min' AND '61 min' AS in_an_hour
FROM queue.tasks WHERE id = 2;
SELECT queue.push('default', run_at => '2099-01-01 00:00+00');
SELECT run_at AT TIME ZONE 'UTC' AS run_at FROM queue.tasks WHERE id = 3;

-- Payloads are stored unchanged.
SELECT queue.push('default', '{"n": 12345678901234567890.5, "deep": [[[{}]]], "text": "\u00e9 \\u0000"}');
SELECT payload FROM queue.tasks WHERE id = 4;

-- A push that is rolled back, whole or to a savepoint, leaves no task.
BEGIN;
SELECT queue.push('default');
SAVEPOINT before;
SELECT queue.push('default');
ROLLBACK TO before;
COMMIT;
BEGIN;
SELECT queue.push('default');
ROLLBACK;
SELECT id FROM queue.tasks ORDER BY id;

-- push_many keeps the order of the payloads.
SELECT queue.push_many('default', ARRAY['"a"', '"b"', '"c"']::jsonb[], priority => 7);
SELECT id, payload, priority FROM queue.tasks WHERE priority = 7 ORDER BY id;
SELECT count(DISTINCT run_at) FROM queue.tasks WHERE priority = 7;
SELECT queue.push_many('default', '{}');

SELECT pg_temp.refused($$SELECT queue.push('mail')$$);
SELECT pg_temp.refused($$SELECT queue.push_many('mail', '{}')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', run_at => now(), delay => '1 s')$$);
SELECT count(*) FROM queue.tasks;
