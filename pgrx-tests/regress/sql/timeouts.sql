\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- For how long tasks are leased, and how much of their timeout is used up.
CREATE FUNCTION pg_temp.leased(task bigint) RETURNS interval LANGUAGE sql AS $$
    SELECT lease_until - claimed_at FROM queue.tasks WHERE id = task;
$$;
-- Makes a running attempt older.
CREATE FUNCTION pg_temp.pass(task bigint, passed interval) RETURNS void LANGUAGE sql AS $$
    UPDATE queue.tasks SET claimed_at = claimed_at - passed, lease_until = lease_until - passed WHERE id = task;
$$;

SELECT queue.configure('default', '{"backoff": {"base": "1 hour"}}');

-- A task can have a lease of its own. A claim that names none leases it for that long.
SELECT queue.push('default', lease => '10 minutes'), queue.push('default');
SELECT count(*) FROM queue.claim(max_tasks => 2);
SELECT id, pg_temp.leased(id) FROM queue.tasks ORDER BY id;
-- A claim that names one wins.
SELECT queue.release(1, 1), queue.release(2, 1);
SELECT count(*) FROM queue.claim('5 minutes', max_tasks => 2);
SELECT id, pg_temp.leased(id) FROM queue.tasks ORDER BY id;
-- So it is with heartbeats.
SELECT count(*) FROM queue.extend(1, 2);
SELECT count(*) FROM queue.extend_many('{2}', '{2}');
SELECT id, lease_until - updated_at AS leased FROM queue.tasks ORDER BY id;
SELECT count(*) FROM queue.extend_many('{1}', '{2}');
SELECT count(*) FROM queue.extend(2, 2, '3 minutes');
SELECT id, lease_until - updated_at AS leased FROM queue.tasks ORDER BY id;
SELECT count(*) FROM queue.complete_many('{1, 2}', '{2, 2}');

-- A timeout bounds an attempt, however often its lease is extended.
SELECT queue.push('default', timeout => '1 hour', max_attempts => 2) AS id \gset
SELECT count(*) FROM queue.claim('2 hours');
SELECT pg_temp.leased(:id);
SELECT pg_temp.pass(:id, '50 minutes');
SELECT count(*) FROM queue.extend(:id, 1, '2 hours');
SELECT pg_temp.leased(:id);
SELECT count(*) FROM queue.extend(:id, 1, '1 minute');
SELECT pg_temp.leased(:id) BETWEEN '50 minutes' AND '55 minutes' AS shorter;
SELECT count(*) FROM queue.extend(:id, 1, '2 hours');
-- Then its lease is not extended any more ...
SELECT pg_temp.pass(:id, '10 minutes');
SELECT pg_temp.refused(format('SELECT queue.extend(%s, 1)', :id));
SELECT count(*) FROM queue.extend_many(ARRAY[:id::bigint], '{1}');
-- ... and the attempt has failed. It is retried after the backoff of the queue.
SELECT queue.reap();
SELECT state, attempt, run_at > (errors -> 0 ->> 'at')::timestamptz AS later, errors -> 0 ->> 'error' AS error FROM queue.tasks;
-- An attempt whose worker has died before that has lost its lease as usual, and is retried at once.
SELECT queue.push('default', timeout => '1 hour') AS other \gset
SELECT count(*) FROM queue.claim('1 minute');
SELECT pg_temp.expire(:other);
SELECT queue.reap();
SELECT state, attempt, run_at > (errors -> 0 ->> 'at')::timestamptz AS later, errors -> 0 ->> 'error' AS error FROM queue.tasks WHERE id = :other;
SELECT queue.cancel(:other);
-- A claim ends it, too. After the last attempt the task is a dead letter.
CALL queue.run_now_where('{"all": true}');
SELECT attempt FROM queue.claim('2 hours');
SELECT pg_temp.pass(:id, '1 hour');
SELECT count(*) FROM queue.claim('2 hours');
SELECT state, attempt, errors -> 1 ->> 'error' AS error, timeout FROM queue.get(:id);
-- The task keeps its lease and its timeout, also when it is run again.
SELECT queue.retry(:id);
SELECT timeout FROM queue.get(:id);
SELECT queue.run_again(1) AS again \gset
SELECT lease FROM queue.get(:again);

-- A queue can have a timeout for all of its tasks.
SELECT queue.create('calls', '{"lease": "1 minute", "timeout": "30 seconds"}');
SELECT queue.push('calls') AS usual, queue.push('calls', timeout => '45 seconds') AS own \gset
SELECT count(*) FROM queue.claim(queue => 'calls', max_tasks => 2);
SELECT pg_temp.leased(:usual), pg_temp.leased(:own);
SELECT queue.configure('calls', '{"timeout": null}');
SELECT count(*) FROM queue.extend(:usual, 1);
SELECT pg_temp.leased(:usual) > '30 seconds' AS longer;
SELECT queue.configure('calls', '{"timeout": "20 seconds"}');
SELECT pg_temp.pass(:usual, '30 seconds');
SELECT pg_temp.refused(format('SELECT queue.extend(%s, 1)', :usual));
SELECT queue.push('calls', key => 'k', timeout => '10 seconds', lease => '5 seconds') > 0 AS pushed;
SELECT timeout, lease FROM queue.tasks WHERE key = 'k';
-- Schedules pass both on.
SELECT queue.schedule('hourly', '@hourly', 'calls', options => '{"lease": "5 seconds", "timeout": "10 seconds"}') IS NOT NULL AS scheduled;
SELECT queue.run_schedule('hourly') AS run \gset
SELECT timeout, lease FROM queue.get(:run);

-- A worker that gives a task back, or suspends it, after its timeout has used up the attempt.
SELECT queue.create('late', '{"timeout": "30 seconds", "max_attempts": 5, "backoff": {"base": "0"}}');
SELECT queue.push('late') AS id \gset
SELECT token FROM queue.claim(queue => 'late') \gset
SELECT pg_temp.pass(:id, '1 minute');
SELECT queue.release(:id, :token);
SELECT token FROM queue.claim(queue => 'late') \gset
SELECT pg_temp.pass(:id, '1 minute');
SELECT count(*) FROM queue.release_many(ARRAY[:id]::bigint[], ARRAY[:token]::bigint[]);
SELECT token FROM queue.claim(queue => 'late') \gset
SELECT pg_temp.pass(:id, '1 minute');
SELECT queue.sleep(:id, :token, 'nap', '1 day');
SELECT token FROM queue.claim(queue => 'late') \gset
SELECT pg_temp.pass(:id, '1 minute');
SELECT * FROM queue.await_event(:id, :token, 'never', '1 day');
SELECT token, attempt FROM queue.claim(queue => 'late') \gset
SELECT pg_temp.pass(:id, '1 minute');
SELECT * FROM queue.await_event(:id, :token, 'never', '1 day');
SELECT state, attempt, (SELECT array_agg(e ->> 'error') FROM jsonb_array_elements(errors) AS e) AS errors FROM queue.get(:id);

-- What is refused.
SELECT pg_temp.refused($$SELECT queue.push('default', lease => '0')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', lease => '8 days')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', timeout => '0')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', timeout => '-1 second')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', timeout => '367 days')$$);
SELECT pg_temp.refused($$SELECT queue.create('bad', '{"timeout": "0"}')$$);
SELECT pg_temp.refused($$SELECT queue.create('bad', '{"timeout": 1}')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, timeout) VALUES ('default', '0')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, lease) VALUES ('default', '-1 year 361 days')$$);
