\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A task that does not run is cancelled at once.
SELECT queue.push('default', '"queued"') AS id \gset
SELECT queue.cancel(:id);
SELECT state, payload FROM queue.get(:id);
SELECT pg_temp.refused(format('SELECT queue.cancel(%s)', :id));
SELECT pg_temp.refused('SELECT queue.cancel(999999)');

-- The worker of a running task is asked to stop, and confirms.
SELECT queue.push('default', '"asked"') AS id \gset
SELECT token FROM queue.claim('1 minute') \gset
SELECT pg_temp.refused(format('SELECT queue.confirm_cancel(%s, %s)', :id, :token));
SELECT queue.cancel(:id), queue.cancel(:id);
SELECT queue.confirm_cancel(:id, :token);
SELECT state FROM queue.get(:id);

-- If it fails, releases the task or loses its lease instead, the task is cancelled as well.
CREATE FUNCTION pg_temp.running() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    task bigint := queue.push('default');
BEGIN
    PERFORM queue.claim('1 minute');
    PERFORM queue.cancel(task);
    RETURN task;
END
$$;
SELECT pg_temp.running() AS id \gset
SELECT queue.fail(:id, 1, 'stopped');
SELECT state, jsonb_path_query_array(errors, '$[*].error') AS errors FROM queue.get(:id);
SELECT pg_temp.running() AS id \gset
SELECT queue.release(:id, 1);
SELECT state FROM queue.get(:id);
SELECT pg_temp.running() AS id \gset
SELECT pg_temp.expire(:id), queue.reap();
SELECT state FROM queue.get(:id);
SELECT pg_temp.running() AS id \gset
SELECT pg_temp.expire(:id);
SELECT * FROM queue.claim('1 minute');
SELECT state FROM queue.get(:id);
-- A worker that completes the task first is not refused.
SELECT pg_temp.running() AS id \gset
SELECT queue.complete(:id, 1);
SELECT state FROM queue.get(:id);
SELECT count(*) FROM queue.tasks;

-- By key: the task that has it, if there is one.
SELECT queue.create('reminders', '{"key_ttl": "1 hour"}');
SELECT queue.push('reminders', key => 'ada', delay => '1 day') AS ada, queue.push('reminders', key => 'bob') AS bob \gset
SELECT queue.cancel('reminders', 'ada'), queue.cancel('reminders', 'Bob'), queue.cancel('default', 'bob');
SELECT (queue.get(:ada)).state AS ada, (queue.get(:bob)).state AS bob;
-- The key_ttl keeps the key, but no task has it.
SELECT queue.push('reminders', key => 'ada') = :ada AS taken, queue.cancel('reminders', 'ada');
SELECT id, token FROM queue.claim('1 minute', 'reminders') \gset
SELECT queue.cancel('reminders', 'bob');
SELECT cancel_requested FROM queue.extend(:id, :token);
-- The task that is to follow a running one has the key until it is cancelled.
SELECT queue.push('reminders', key => 'bob', on_duplicate => 'replace') AS next \gset
SELECT queue.cancel('reminders', 'bob') AS the_next, queue.cancel('reminders', 'bob') AS the_running;
SELECT (queue.get(:next)).state AS the_next, (queue.get(:bob)).state AS the_running;
SELECT queue.confirm_cancel(:id, :token);
SELECT queue.cancel('reminders', 'bob');
