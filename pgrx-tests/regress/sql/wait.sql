\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SET client_min_messages = notice;
SELECT queue.create('mail');
-- Without a task, it returns false at the timeout.
CALL queue.wait('mail', '20 ms');
CALL queue.wait('mail', '0');
-- With a task, it returns true at once. It does not claim the task.
SELECT queue.push('mail') AS id \gset
CALL queue.wait('mail', '1 hour');
CALL queue.wait('mail', '1 hour');
-- Waits for any of several queues.
CALL queue.wait(ARRAY['default', 'mail'], '1 hour');
-- A running task cannot be claimed until its lease expires.
SELECT count(*) FROM queue.claim('1 minute', 'mail');
CALL queue.wait('mail', '20 ms');
SELECT pg_temp.expire(:id);
CALL queue.wait('mail', '1 hour');
SELECT token FROM queue.claim('30 ms', 'mail') \gset
CALL queue.wait('mail', '1 hour');
SELECT queue.purge('mail');
SELECT queue.complete(id, token) FROM queue.claim(queue => 'mail');
-- Waits for a delayed task.
SELECT queue.push('mail', delay => '1 second') AS id \gset
CALL queue.wait('mail', '20 ms');
CALL queue.wait('mail', '1 hour');
SELECT run_at <= clock_timestamp() AS due FROM queue.tasks WHERE id = :id;
-- A paused queue has nothing to claim.
SELECT queue.pause('mail');
CALL queue.wait('mail', '20 ms');
SELECT queue.resume('mail');
CALL queue.wait('mail', '1 hour');
-- The value of the INOUT argument is not returned as a result.
CALL queue.wait('default', '0', true);

-- Limits and groups count.
SELECT queue.create('narrow', '{"max_running": 1}');
SELECT queue.push('narrow'), queue.push('narrow');
CALL queue.wait('narrow', '1 hour');
SELECT id, token FROM queue.claim('1 minute', 'narrow') \gset
CALL queue.wait('narrow', '20 ms');
SELECT queue.complete(:id, :token);
CALL queue.wait('narrow', '1 hour');
SELECT queue.create('groups');
SELECT queue.push('groups', group_key => 'g'), queue.push('groups', group_key => 'g');
SELECT id, token FROM queue.claim('1 minute', 'groups') \gset
CALL queue.wait('groups', '20 ms');
SELECT queue.complete(:id, :token);
CALL queue.wait('groups', '1 hour');

-- A procedure that may commit can wait.
CREATE PROCEDURE pg_temp.work() LANGUAGE plpgsql AS $$
DECLARE
    ready boolean;
BEGIN
    CALL queue.wait('default', '20 ms', ready);
    RAISE NOTICE '%', ready;
    PERFORM queue.push('default');
    COMMIT;
    CALL queue.wait('default', '1 hour', ready);
    RAISE NOTICE '%', ready;
    PERFORM queue.complete(id, token) FROM queue.claim();
END
$$;
CALL pg_temp.work();

-- An unknown queue is refused, also among others.
SELECT pg_temp.refused($$CALL queue.wait('letters')$$);
SELECT pg_temp.refused($$CALL queue.wait(ARRAY['mail', 'letters'])$$);

-- The slots of dead workers become free.
SELECT queue.create('places', '{"max_running": 2}');
SELECT count(queue.push('places')) FROM generate_series(1, 4);
SELECT count(*) FROM queue.claim('1 minute', 'places', 2);
CALL queue.wait('places', '0');
SELECT pg_temp.expire(min(id)) FROM queue.tasks WHERE queue = 'places' AND state = 'running';
CALL queue.wait('places', '0');
SELECT attempt FROM queue.claim('1 minute', 'places', 2);
CALL queue.wait('places', '0');

-- take waits for a task and claims it. Without one, it returns nulls.
SELECT queue.create('taken');
SELECT queue.push('taken', '{"n": 1}', headers => '{"h": 2}', key => 'k', priority => 3, max_attempts => 4) AS pushed \gset
CALL queue.take('taken', '1 minute', '1 hour', 'w') \gset
SELECT :id = :pushed AS same, :'payload' AS payload, :'headers' AS headers, :attempt AS attempt, :max_attempts AS max_attempts, :priority AS priority, :'key' AS key;
SELECT worker, lease_until = :'lease_until' AS same_lease FROM queue.tasks WHERE id = :id;
SELECT queue.complete(:id, :token);
CALL queue.take('taken', timeout => '10 ms');
-- Also if results are passed.
CALL queue.take('taken', timeout => '0', id => 5, token => 5);
