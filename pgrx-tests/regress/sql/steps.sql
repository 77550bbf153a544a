\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A task with three steps. The first attempt stores two of them and fails.
SELECT queue.create('orders', '{"backoff": {"base": "0"}}');
SELECT queue.push('orders', '{"order": 17}') AS id \gset
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.step(:task, :token, 'reserve', '{"reservation": 5}');
SELECT queue.step(:task, :token, 'charge', '"in progress"');
SELECT queue.fail(:task, :token, 'the card reader is offline');
-- The next attempt gets what is stored, whatever it passes.
SELECT id AS task, token, attempt FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.step(:task, :token, 'reserve', '{"reservation": 6}');
SELECT queue.step(:task, :token, 'charge', '"done"'), queue.step(:task, :token, 'ship', 'null');
-- A worker that starts again can read all of them at once.
SELECT name, value, kind, stored_at IS NOT NULL AS stored FROM queue.steps(:task);
-- They stay with the task in the history. A lost lease stores nothing.
SELECT queue.complete(:task, :token);
SELECT name, value FROM queue.steps(:task);
SELECT pg_temp.refused(format($$SELECT queue.step(%s, %s, 'late', '1')$$, :task, :token));
SELECT pg_temp.refused($$SELECT queue.steps(4711)$$);

-- Waiting for an event that was not emitted: no row. The task is suspended, without a lease, and no attempt is counted.
SELECT queue.push('orders', '{"order": 18}') AS id \gset
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 18 paid');
SELECT state, attempt, lease_until, worker FROM queue.tasks WHERE id = :task;
SELECT count(*) FROM queue.claim('1 minute', 'orders');
SELECT name, value, kind, stored_at IS NOT NULL AS stored FROM queue.steps(:task);
-- Its old token is refused.
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :task, :token));
SELECT left(pg_temp.refused(format('SELECT queue.extend(%s, %s)', :task, :token)), 6) AS extend,
       left(pg_temp.refused(format($$SELECT queue.fail(%s, %s, 'no')$$, :task, :token)), 6) AS fail,
       left(pg_temp.refused(format($$SELECT queue.await_event(%s, %s, 'order 18 paid')$$, :task, :token)), 6) AS again;
-- The event makes it claimable again. Only the first emission of a name counts.
SELECT queue.emit('orders', 'order 18 paid', '{"amount": 30}');
SELECT queue.emit('orders', 'order 18 paid', '{"amount": 40}');
SELECT id AS task, token, attempt FROM queue.claim('1 minute', 'orders') \gset
SELECT :attempt AS attempt;
SELECT * FROM queue.await_event(:task, :token, 'order 18 paid');
SELECT name, value, kind, stored_at IS NOT NULL AS stored FROM queue.steps(:task);
-- Later attempts get the same, even after the event was forgotten.
SELECT queue.fail(:task, :token, 'once more');
DELETE FROM queue_internal.emitted;
SELECT queue.emit('orders', 'order 18 paid', '"another"');
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 18 paid');
-- What was emitted before is returned at once. Events belong to a queue.
SELECT queue.emit('orders', 'early'), queue.emit('default', 'elsewhere');
SELECT * FROM queue.await_event(:task, :token, 'early');
SELECT * FROM queue.await_event(:task, :token, 'elsewhere', '0');
SELECT queue.complete(:task, :token);

-- A timeout. Until then the task is scheduled, at a time that does not change with later calls.
SELECT queue.push('orders', '{"order": 19}') AS id \gset
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 19 paid', '3 days');
SELECT state, run_at > now() + interval '2 days 23 hours' AS in_three_days FROM queue.get(:task);
CALL queue.run_now_where(jsonb_build_object('ids', jsonb_build_array(:task)));
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 19 paid', '100 days');
SELECT state, run_at < now() + interval '3 days 1 hour' AS in_three_days FROM queue.get(:task);
UPDATE queue_internal.awaits SET until = clock_timestamp();
CALL queue.run_now_where(jsonb_build_object('ids', jsonb_build_array(:task)));
SELECT id AS task, token, attempt FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 19 paid', '3 days');
-- The timeout is final for this task.
SELECT queue.emit('orders', 'order 19 paid', '"too late"');
SELECT * FROM queue.await_event(:task, :token, 'order 19 paid');
SELECT :attempt AS attempt, queue.complete(:task, :token);
-- An event before the timeout ends the wait.
SELECT queue.push('orders', '{"order": 20}') AS id \gset
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 20 paid', '3 days');
SELECT queue.emit('orders', 'order 20 paid', '"in time"');
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_event(:task, :token, 'order 20 paid', '3 days');

-- Sleeping until a time, and for a time that counts from the first call.
SELECT queue.sleep(:task, :token, now() - interval '1 second') AS has_passed;
SELECT queue.sleep(:task, :token, now() + interval '1 hour') AS has_passed;
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :task, :token));
SELECT state, attempt FROM queue.get(:task);
UPDATE queue.tasks SET run_at = clock_timestamp() WHERE id = :task;
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.sleep(:task, :token, 'a week', '7 days') AS has_passed;
UPDATE queue.tasks SET run_at = clock_timestamp() WHERE id = :task;
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.sleep(:task, :token, 'a week', '0') AS has_passed;
SELECT run_at > now() + interval '6 days' AS in_a_week FROM queue.get(:task);
UPDATE queue_internal.steps SET value = to_jsonb(now()) WHERE kind = 'sleep';
UPDATE queue.tasks SET run_at = clock_timestamp() WHERE id = :task;
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.sleep(:task, :token, 'a week', '7 days') AS has_passed;
SELECT queue.complete(:task, :token);

-- Waiting for another task: until it has ended for good.
SELECT queue.create('letters', '{"max_attempts": 2, "backoff": {"base": "0"}}');
SELECT queue.push('orders') AS id \gset
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.push('letters', '"first"') AS first, queue.push('letters', '"second"') AS second,
       queue.push('letters', '"third"') AS third, queue.push('letters', '"fourth"') AS fourth \gset
SELECT * FROM queue.await_task(:task, :token, :first);
SELECT state FROM queue.get(:task);
SELECT queue.complete(id, token, '{"pages": 3}') FROM queue.claim('1 minute', 'letters');
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_task(:task, :token, :first);
SELECT * FROM queue.await_task(:task, :token, :second, '1 day');
SELECT queue.fail(id, token, 'no paper') FROM queue.claim('1 minute', 'letters');
SELECT count(*) FROM queue.claim('1 minute', 'orders');
SELECT queue.fail(id, token, 'no paper') FROM queue.claim('1 minute', 'letters');
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_task(:task, :token, :second, '1 day');
-- A timeout, and a task that was deleted.
SELECT * FROM queue.await_task(:task, :token, :third, '0');
SELECT * FROM queue.await_task(:task, :token, :fourth);
SELECT queue.purge('letters');
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT * FROM queue.await_task(:task, :token, :fourth);
SELECT pg_temp.refused(format('SELECT queue.await_task(%s, %s, 4711)', :task, :token));
SELECT pg_temp.refused(format('SELECT queue.await_task(%s, %s, %1$s)', :task, :token));
SELECT name = :first::text AS first, kind, value FROM queue.steps(:task);
SELECT queue.complete(:task, :token);
SELECT count(*) AS dependencies FROM queue_internal.dependencies;
SELECT count(*) AS awaits FROM queue_internal.awaits;

-- A suspended task can be cancelled. A running one whose cancellation was requested is cancelled instead of suspended.
SELECT queue.push('orders') AS id, queue.push('orders') AS other \gset
SELECT queue.sleep(id, token, now() + interval '1 day') FROM queue.claim('1 minute', 'orders');
SELECT queue.cancel(:id);
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.cancel(:task);
SELECT * FROM queue.await_event(:task, :token, 'never');
SELECT state FROM queue.get(:task);

-- A dead letter that is put back continues with its steps. A task that is run again is a new one, without steps.
SELECT queue.push('orders') AS id \gset
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.step(:task, :token, 'reserve', '1');
SELECT queue.fail(:task, :token, 'broken', permanent => true);
SELECT name, value FROM queue.steps(:task);
SELECT queue.run_again(:task) AS anew \gset
SELECT count(*) FROM queue.steps(:anew);
SELECT queue.cancel(:anew), queue.retry(:task);
SELECT id AS task, token FROM queue.claim('1 minute', 'orders') \gset
SELECT queue.step(:task, :token, 'reserve', '2'), queue.complete(:task, :token);

-- Steps are deleted with their task, and old events too, unless a task waits for one.
SELECT queue.push('orders') AS id \gset
SELECT count(*) FROM queue.claim('1 minute', 'orders'), queue.await_event(id, token, 'awaited');
UPDATE queue_internal.emitted SET created_at = created_at - interval '1 year', emitted_at = emitted_at - interval '1 year';
DELETE FROM queue.history WHERE id = :task;
SELECT pg_temp.refused(format('SELECT queue.steps(%s)', :task)) LIKE 'QX003%' AS gone;
CALL queue.maintain();
SELECT event FROM queue_internal.emitted;
SELECT count(*) FROM queue_internal.steps WHERE task_id = :task;
SELECT count(*) > 0 AS others FROM queue_internal.steps;
-- A lost event of this kind is found by the sweep.
SELECT queue.emit('orders', 'awaited');
DELETE FROM queue_internal.events;
CALL queue.maintain();
SELECT count(*) FROM queue.claim('1 minute', 'orders'), queue.await_event(id, token, 'awaited') AS a WHERE a.arrived;

-- A suspended task of a group keeps its place in it, and frees its slot.
SELECT queue.create('limited', '{"max_running": 1}');
SELECT queue.push('limited', '"a"', group_key => 'g') AS a, queue.push('limited', '"b"', group_key => 'g') AS b,
       queue.push('limited', '"c"') AS c \gset
SELECT c.payload, e.* FROM queue.claim('1 minute', 'limited') AS c LEFT JOIN LATERAL queue.await_event(c.id, c.token, 'go') AS e ON true;
SELECT payload, queue.complete(id, token) FROM queue.claim('1 minute', 'limited', 9);
SELECT queue.emit('limited', 'go', '"now"');
SELECT c.payload, e.*, queue.complete(c.id, c.token)
FROM queue.claim('1 minute', 'limited') AS c LEFT JOIN LATERAL queue.await_event(c.id, c.token, 'go') AS e ON true;
SELECT payload, queue.complete(id, token) FROM queue.claim('1 minute', 'limited', 9);
-- A queue that is dropped takes its events with it.
SELECT queue.drop('limited'), count(*) FROM queue_internal.emitted WHERE queue = 'limited';
SELECT count(*) FROM queue_internal.emitted WHERE queue = 'limited';

-- Tasks that were moved while they waited keep the queue of their event from being dropped. By force they time out.
SELECT queue.create('left'), queue.create('moved_to');
SELECT queue.push('left', '"for ever"') AS for_ever, queue.push('left', '"a day"') AS a_day, queue.push('left', '"lost"') AS lost \gset
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'left', 9) AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'go', CASE WHEN c.payload = '"a day"' THEN interval '1 day' END));
CALL queue.move_where('{"queue": "left"}', 'moved_to');
SELECT pg_temp.refused('SELECT queue.drop(''left'')');
SELECT queue.drop('left', force => true);
DELETE FROM queue_internal.events WHERE task_id = :lost;
SELECT c.payload FROM queue.claim('1 minute', 'moved_to', 9) AS c, queue.await_event(c.id, c.token, 'go') AS e,
     queue.complete(c.id, c.token)
WHERE NOT e.arrived;
CALL queue.maintain();
SELECT c.payload FROM queue.claim('1 minute', 'moved_to', 9) AS c, queue.await_event(c.id, c.token, 'go') AS e,
     queue.complete(c.id, c.token)
WHERE NOT e.arrived;
SELECT queue.drop('moved_to');
-- So does a task that runs again: it will ask for the event once more.
SELECT queue.create('left'), queue.create('moved_to'), queue.push('left') IS NOT NULL AS pushed;
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'left') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'go', '1 day'));
CALL queue.move_where('{"queue": "left"}', 'moved_to');
CALL queue.run_now_where('{"queue": "moved_to"}');
SELECT count(*) AS runs FROM queue.claim('1 minute', 'moved_to');
SELECT pg_temp.refused('SELECT queue.drop(''left'')') LIKE '55006%' AS refused;
SELECT queue.drop('left', force => true), queue.drop('moved_to', force => true);
-- So does a dead letter, which can be put back. By force its wait has timed out.
SELECT queue.create('left'), queue.create('moved_to');
SELECT queue.push('left') AS id \gset
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'left') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'go'));
CALL queue.move_where('{"queue": "left"}', 'moved_to');
SELECT queue.emit('left', 'go');
CALL queue.maintain();
SELECT queue.fail(c.id, c.token, 'x', permanent => true) FROM queue.claim('1 minute', 'moved_to') AS c;
SELECT pg_temp.refused('SELECT queue.drop(''left'')') LIKE '55006%' AS refused;
SELECT queue.retry(:id);
SELECT e.arrived FROM queue.claim('1 minute', 'moved_to') AS c, queue.await_event(c.id, c.token, 'go') AS e;
SELECT queue.drop('left', force => true), queue.drop('moved_to', force => true);
-- A queue that is dropped and created in one transaction is another one, and so is an event of it.
SELECT queue.create('left'), queue.create('moved_to'), queue.push('left') IS NOT NULL AS pushed;
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'left') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'go', '1 day'));
CALL queue.move_where('{"queue": "left"}', 'moved_to');
BEGIN;
SELECT queue.drop('left', force => true), queue.create('left');
COMMIT;
SELECT queue.emit('left', 'go', '"another"');
CALL queue.maintain();
SELECT e.arrived, e.payload FROM queue.claim('1 minute', 'moved_to') AS c, queue.await_event(c.id, c.token, 'go') AS e;
SELECT queue.drop('left', force => true), queue.drop('moved_to', force => true);
-- A queue that was deleted by hand emits nothing either.
SELECT queue.create('left'), queue.create('moved_to'), queue.push('left') IS NOT NULL AS pushed;
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'left') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'go'));
CALL queue.move_where('{"queue": "left"}', 'moved_to');
DELETE FROM queue.queues WHERE name = 'left';
CALL queue.maintain();
CALL queue.maintain();
SELECT e.arrived FROM queue.claim('1 minute', 'moved_to') AS c, queue.await_event(c.id, c.token, 'go') AS e;
SELECT queue.drop('moved_to', force => true);
-- A dependency that was left over does not cost a running task the outcome that it will ask for.
SELECT queue.create('forgets', '{"keep_history": false}');
SELECT queue.push('forgets', key => 'first') AS first, queue.push('forgets', key => 'other') AS other, queue.push('orders') AS id \gset
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'orders') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_task(c.id, c.token, :other, '1 day'));
CALL queue.run_now_where('{"queue": "orders"}');
SELECT id = :id AS runs, token FROM queue.claim('1 minute', 'orders') \gset
INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure) VALUES (:first, :id, 'continue');
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'forgets', 2);
CALL queue.maintain();
SELECT state FROM queue.await_task(:id, :token, :other);
SELECT queue.complete(:id, :token);
SELECT queue.drop('forgets');

-- The end of the time of a suspended task is its run_at, which a producer may put off.
SELECT queue.push('orders', key => 'put off') AS id \gset
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'orders') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'never', '1 day'));
UPDATE queue_internal.awaits SET until = clock_timestamp() WHERE task_id = :id;
SELECT queue.push('orders', key => 'put off', on_duplicate => 'reschedule', delay => '2 days') = :id AS same;
CALL queue.maintain();
SELECT state, run_at > now() + interval '1 day' AS later FROM queue.tasks WHERE id = :id;
SELECT queue.cancel(:id);

-- An event about a suspended task that has not come wakes nobody.
SELECT queue.push('orders') AS id \gset
SELECT count(*) AS suspended FROM queue.claim('1 minute', 'orders') AS c
WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'never'));
INSERT INTO queue_internal.events (queue, task_id) VALUES ('orders', :id);
SELECT count(*) AS claimed FROM queue.claim('1 minute', 'orders');
SELECT state FROM queue.tasks WHERE id = :id;
SELECT queue.cancel(:id);

-- A dead letter that is put back still learns how the task has ended that it waited for, though that left no trace.
SELECT queue.create('bare', '{"keep_history": false}');
SELECT queue.push('orders') AS waiter, queue.push('bare') AS other \gset
SELECT a.* FROM queue.claim('1 minute', 'orders'), queue.await_task(id, token, :other, '1 day') AS a;
CALL queue.run_now_where(jsonb_build_object('ids', jsonb_build_array(:waiter)));
SELECT queue.fail(id, token, 'broken', permanent => true) FROM queue.claim('1 minute', 'orders');
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'bare');
CALL queue.maintain();
SELECT queue.retry(:waiter);
SELECT a.*, queue.complete(id, token) FROM queue.claim('1 minute', 'orders'), queue.await_task(id, token, :other, '1 day') AS a;

-- Nothing stays of a suspended task that ends without a trace.
SELECT queue.push('bare') AS waiter, queue.push('orders') AS other \gset
SELECT a.* FROM queue.claim('1 minute', 'bare'), queue.await_task(id, token, :other, '1 day') AS a;
SELECT queue.cancel(:waiter);
CALL queue.maintain();
SELECT count(*) AS dependencies, (SELECT count(*) FROM queue_internal.awaits WHERE task_id = :waiter) AS awaits
FROM queue_internal.dependencies WHERE task_id = :waiter;

-- To a role without a right on its queue the other task does not exist, whether it is live or was deleted. How it ended
-- is what the task was told when it began to wait.
SELECT queue.create('shared'), queue.create('private');
CREATE ROLE steps_worker;
SELECT queue.grant_worker('steps_worker', 'shared');
SELECT queue.push('shared') AS waiter, queue.push('private') AS other \gset
SELECT a.* FROM queue.claim('1 minute', 'shared'), queue.await_task(id, token, :other, '1 day') AS a;
CALL queue.run_now_where(jsonb_build_object('ids', jsonb_build_array(:waiter)));
SET ROLE steps_worker;
SELECT id AS task, token FROM queue.claim('1 minute', 'shared') \gset
SELECT pg_temp.refused(format('SELECT queue.await_task(%s, %s, %s)', :task, :token, :other)) LIKE 'QX003%' AS refused;
SELECT count(*) FROM queue.steps(:task);
RESET ROLE;
SELECT queue.complete(id, token, '"secret"') FROM queue.claim('1 minute', 'private');
SET ROLE steps_worker;
SELECT * FROM queue.await_task(:task, :token, :other);
SELECT queue.complete(:task, :token);
RESET ROLE;
SELECT queue.drop('shared'), queue.drop('private');
DROP OWNED BY steps_worker;
DROP ROLE steps_worker;

-- More tasks than an emission wakes: the rest is woken in parts.
BEGIN;
SELECT queue.create('crowd');
WITH suspended AS (
    INSERT INTO queue.tasks (queue, state, admission, token) SELECT 'crowd', 'waiting', 2, 1 FROM generate_series(1, 12000) RETURNING id)
INSERT INTO queue_internal.awaits (task_id, token, queue, event) SELECT id, 1, 'crowd', 'go' FROM suspended;
SELECT queue.emit('crowd', 'go');
SELECT count(*) FROM queue_internal.events WHERE queue = 'crowd';
SELECT queue_internal.wake_rest() + queue_internal.wake_rest() + queue_internal.wake_rest() AS parts, queue_internal.wake_rest();
SELECT count(*), count(DISTINCT task_id) FROM queue_internal.events WHERE queue = 'crowd';
ROLLBACK;
-- An emission at REPEATABLE READ may not have seen all: they are looked for once more.
SELECT queue.create('once');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue.emit('once', 'nobody');
COMMIT;
SELECT queue_internal.wake_rest() AS first, queue_internal.wake_rest() AS then;
CALL queue.maintain();
SELECT queue.drop('once');
