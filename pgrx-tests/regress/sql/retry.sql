\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.create('mail', '{"max_attempts": 1}');
SELECT queue.push_many('mail', ARRAY['1', '2', '3', '4']::jsonb[]);
SELECT queue.fail(id, token, 'broken') FROM queue.claim('1 minute', 'mail', 4);

-- A retried dead letter is due at once, with its attempts at 0 and its errors kept. Its token continues to grow.
SELECT queue.retry(1);
SELECT state, attempt, token, payload, jsonb_array_length(errors) AS errors, run_at <= clock_timestamp() AS due FROM queue.tasks;
SELECT id, token, attempt FROM queue.claim('1 minute', 'mail');
SELECT pg_temp.refused('SELECT queue.retry(1)');
SELECT pg_temp.refused('SELECT queue.retry(999999)');
SELECT queue.complete(1, 2);
SELECT pg_temp.refused('SELECT queue.retry(1)');

-- redrive starts with the oldest.
SELECT queue.redrive('mail', 2);
SELECT id, state FROM queue.tasks ORDER BY id;
SELECT id FROM queue.dead_letters;
SELECT queue.redrive('mail'), queue.redrive('mail');
SELECT pg_temp.refused($$SELECT queue.redrive('nowhere')$$);

-- A dead letter of a dropped queue cannot be retried.
SELECT queue.fail(id, token, 'broken') FROM queue.claim('1 minute', 'mail', 4);
DELETE FROM queue.queues WHERE name = 'mail';
SELECT pg_temp.refused('SELECT queue.retry(2)');
SELECT count(*) FROM queue.dead_letters;

-- The outcome of a task that ended at REPEATABLE READ is kept for the sweep until the task is retried.
SELECT queue.push('default', priority => -5) AS id \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim('1 minute');
COMMIT;
SELECT outcome FROM queue_internal.outcomes WHERE task_id = :id;
SELECT queue.retry(:id);
SELECT count(*) FROM queue_internal.outcomes WHERE task_id = :id;
