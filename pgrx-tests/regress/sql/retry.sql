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

-- run_again pushes a new task like one that ended, however it ended. The task that ended stays where it is.
SELECT queue.create('again', '{"max_attempts": 1}');
SELECT queue.push('again', '"completes"', priority => 3, headers => '{"h": 1}', max_attempts => 7) AS done \gset
SELECT queue.push('again', '"fails"', key => 'k', key_ttl => '1 hour', group_key => 'g', backoff => '{"base": "5 s"}', priority => 4) AS dead \gset
SELECT queue.push('again', '"is cancelled"', delay => '1 day') AS cancelled \gset
SELECT queue.push('again', '"waits"', delay => '1 day') AS queued \gset
SELECT queue.complete(id, token, '1') FROM queue.claim('1 minute', 'again');
SELECT queue.fail(id, token, 'broken') FROM queue.claim('1 minute', 'again');
SELECT queue.cancel(:cancelled);
SELECT queue.run_again(:done) AS done_2 \gset
SELECT queue.run_again(:dead) AS dead_2 \gset
SELECT queue.run_again(:cancelled) AS cancelled_2 \gset
SELECT payload, priority, headers, key, group_key, backoff, state, attempt, max_attempts, run_at <= clock_timestamp() AS due
FROM queue.tasks WHERE queue = 'again' AND id > :queued ORDER BY id;
SELECT id = :done_2, id = :dead_2, id = :cancelled_2 FROM queue.tasks WHERE queue = 'again' AND id > :queued ORDER BY id;
SELECT (queue.get(:done)).state AS done, (queue.get(:dead)).state AS dead, (queue.get(:cancelled)).state AS cancelled;
SELECT ttl = '1 hour' AS same_key_ttl FROM queue_internal.keys WHERE task_id = :dead_2;
SELECT split_part(pg_temp.refused(format('SELECT queue.run_again(%s)', :dead)), E'\n', 1) AS refused;
SELECT pg_temp.refused(format('SELECT queue.run_again(%s)', :queued)) LIKE 'QX005: task % has not ended%The task is queued.%' AS refused;

-- A completed task: all options that the history keeps. Its key is still taken for its key_ttl, and free afterwards.
SELECT queue.push('again', '"kept"', priority => -2, key => 'kept', key_ttl => '1 hour', group_key => 'g2', max_attempts => 5, headers => '{"h": 2}') AS kept \gset
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'again');
SELECT regexp_replace(split_part(pg_temp.refused(format('SELECT queue.run_again(%s)', :kept)), E'\n', 1), '[0-9]{4}-.*', '') AS refused;
UPDATE queue_internal.keys SET expires_at = '-infinity' WHERE key = 'kept';
SELECT queue.run_again(:kept) AS kept_2 \gset
SELECT payload, priority, key, group_key, max_attempts, headers, state, attempt FROM queue.tasks WHERE id = :kept_2;
SELECT split_part(pg_temp.refused(format('SELECT queue.run_again(%s)', :kept)), E'\n', 1) AS refused;
SELECT state, payload FROM queue.all_tasks WHERE id = :kept;
-- Predecessors have ended and are not waited for again, however they ended: of a completed task, and of a dead letter.
SELECT queue.push('again', '"before"', priority => -3) AS before \gset
SELECT queue.push('again', '"after"', priority => -3, after => ARRAY[:before]) AS after \gset
SELECT queue.push('again', '"after a failure"', priority => -3, after => ARRAY[:before], on_predecessor_failure => 'fail') AS failed \gset
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'again');
CALL queue.maintain();
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'again');
SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim('1 minute', 'again');
SELECT (queue.get(:after)).state AS after, (queue.get(:failed)).state AS failed;
SELECT queue.run_again(:after) AS after_2, queue.run_again(:failed) AS failed_2 \gset
SELECT payload, state, priority FROM queue.tasks WHERE id IN (:after_2, :failed_2) ORDER BY id;
SELECT count(*) AS dependencies FROM queue_internal.dependencies WHERE task_id IN (:after_2, :failed_2);

-- Dead letters whose key is taken do not keep redrive from those behind them.
BEGIN;
SELECT queue.create('taken', '{"max_attempts": 1}');
SELECT queue.push('taken', key => 'k') > 0 AS pushed, queue.push('taken', '{"n": 2}') > 0 AS pushed, queue.push('taken', '{"n": 3}') > 0 AS pushed;
SELECT count(queue.fail(id, token, 'no')) FROM queue.claim('1 minute', 'taken', 3);
SELECT queue.push('taken', key => 'k') > 0 AS pushed;
SELECT queue.redrive('taken', 1);
SELECT payload FROM queue.tasks WHERE queue = 'taken' AND key IS NULL;
SELECT queue.redrive('taken', 2);
SELECT queue.redrive('taken', 1);
ROLLBACK;

-- A task past its start deadline gives up its key, also if it waits for another.
BEGIN;
SELECT queue.create('late', '{"max_attempts": 1}');
SELECT queue.push('late', key => 'k') > 0 AS pushed;
SELECT count(queue.fail(id, token, 'no')) FROM queue.claim('1 minute', 'late');
SELECT queue.push('late', delay => '1 hour') AS predecessor \gset
SELECT queue.push('late', key => 'k', after => ARRAY[:predecessor]::bigint[], ttl => '1 ms') > 0 AS pushed, pg_sleep(0.01);
SELECT queue.redrive('late');
ROLLBACK;

-- A dead letter that a trigger of the user suppresses stays where it is, and does not keep others there.
SELECT queue.create('suppressing');
SELECT queue.push('suppressing', '"no"') AS plain, queue.push('suppressing', '"no"', key => 'k') AS keyed, queue.push('suppressing') AS other \gset
SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'suppressing', 3);
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.payload = ''"no"'' THEN RETURN NULL; END IF; RETURN NEW; END';
CREATE TRIGGER suppress BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION suppress();
\set VERBOSITY sqlstate
SELECT queue.retry(:plain);
SELECT queue.retry(:keyed);
\set VERBOSITY default
SELECT queue.redrive('suppressing');
CALL queue.redrive_where('{"queue": "suppressing"}');
SELECT count(*) FROM queue.dead_letters WHERE queue = 'suppressing';
DROP FUNCTION suppress CASCADE;
SELECT queue.redrive('suppressing');
SELECT queue.drop('suppressing', force => true);
