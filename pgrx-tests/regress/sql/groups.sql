\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- The tasks of a group run one at a time, in the order of their pushes, whatever their priority.
SELECT count(queue.push('default', to_jsonb(n), group_key => 'g', priority => -n)) FROM generate_series(1, 4) AS n;
SELECT queue.push('default', '"of no group"');
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queued, blocked, running FROM queue.stats;
-- The first task keeps its turn through a retry, a release and an expired lease.
SELECT queue.fail(1, 1, 'no', '0');
SELECT payload, attempt FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.release(1, 2);
SELECT payload, attempt FROM queue.claim('1 minute', max_tasks => 10);
SELECT pg_temp.expire(1);
SELECT payload, attempt FROM queue.claim('1 minute', max_tasks => 10);
-- When it ends in any way, the next task has its turn.
SELECT queue.complete(1, 4);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.fail(2, 1, 'no', permanent => true);
SELECT queue.cancel(3);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(4, 1);
-- A redriven task has its old place.
SELECT queue.push('default', '"later"', group_key => 'g'), queue.retry(2);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(2, 2);
SELECT queue.complete_and_claim(id, token) IS NULL AS none_left FROM queue.claim('1 minute');
SELECT count(*) FROM queue_internal.events;

-- A delayed first task blocks the others of its group ...
SELECT queue.create('block');
SELECT queue.push('block', '"first"', group_key => 'g', delay => '1 hour'), queue.push('block', '"second"', group_key => 'g');
SELECT payload FROM queue.claim('1 minute', 'block', 10);
-- ... or lets them run first.
SELECT queue.create('pass', '{"delayed_head": "pass"}');
SELECT queue.push('pass', '"first"', group_key => 'g', delay => '1 hour'), queue.push('pass', '"second"', group_key => 'g'), queue.push('pass', '"third"', group_key => 'g');
SELECT payload, id, token FROM queue.claim('1 minute', 'pass', 10) \gset
SELECT :'payload';
-- When it becomes due, it is the next after the running one.
UPDATE queue.tasks SET run_at = now() WHERE queue = 'pass' AND payload = '"first"';
SELECT payload FROM queue.claim('1 minute', 'pass', 10);
SELECT queue.fail(:id, :token, 'no', '1 hour');
SELECT payload FROM queue.claim('1 minute', 'pass', 10);
-- The option can be changed.
SELECT queue.configure('block', '{"delayed_head": "pass"}');
SELECT payload FROM queue.claim('1 minute', 'block', 10);

-- Several tasks of a group at a time.
SELECT queue.create('three', '{"max_running_per_group": 3}');
INSERT INTO queue.tasks (queue, payload, group_key) SELECT 'three', to_jsonb(n), 'g' FROM generate_series(1, 6) AS n;
SELECT payload FROM queue.claim('1 minute', 'three', 10);
SELECT queue.configure('three', '{"max_running_per_group": 4}');
SELECT payload FROM queue.claim('1 minute', 'three', 10);
SELECT queue.configure('three', '{"max_running_per_group": 1}');
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE queue = 'three' AND state = 'running' AND payload < '4';
SELECT payload FROM queue.claim('1 minute', 'three', 10);
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE queue = 'three' AND state = 'running';
SELECT payload FROM queue.claim('1 minute', 'three', 10);

-- Groups of the same name in different queues are independent.
CALL queue.move_where('{"queue": "three", "group_key": "g"}', 'default');
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);

-- 100,000 blocked tasks do not make a claim slower, because they are not in the index of claims.
INSERT INTO queue.tasks (queue, group_key) SELECT 'three', 'busy' FROM generate_series(1, 1000);
SELECT count(*) FROM queue.claim('1 minute', 'three', 10);
SELECT count(*) FILTER (WHERE admission < 2) AS in_index, count(*) FROM queue.tasks WHERE group_key = 'busy';

-- With a limit of one, the order is that of ids, also if an earlier task returns: it comes before a later one that was
-- admitted and does not run yet, and after one that runs.
SELECT queue.create('strict', '{"max_attempts": 1, "backoff": {"base": "0"}}');
SELECT queue.push('strict', '"a"', group_key => 'g') AS a, queue.push('strict', '"b"', group_key => 'g') AS b,
       queue.push('strict', '"c"', group_key => 'g') AS c \gset
SELECT queue.fail(id, token, 'no') FROM queue.claim('1 minute', 'strict');
-- Admits the second task, and claims nothing.
SELECT queue.pause('strict');
CALL queue.maintain();
SELECT payload, admission FROM queue.tasks WHERE queue = 'strict' ORDER BY id;
SELECT queue.retry(:a), queue.resume('strict');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'strict');
SELECT id AS running, token FROM queue.claim('1 minute', 'strict') \gset
UPDATE queue.tasks SET max_attempts = 9 WHERE id = :b;
SELECT :running = :b AS second_runs, queue.fail(:b, :token, 'again');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'strict');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'strict');
-- Also a task with a smaller id that comes from another queue.
SELECT queue.create('old'), queue.create('young');
SELECT queue.push('old', '"older"', group_key => 'g') AS older, queue.push('young', '"younger"', group_key => 'g') AS younger \gset
SELECT queue.pause('young');
CALL queue.maintain();
SELECT payload, admission FROM queue.tasks WHERE queue = 'young';
CALL queue.move_where('{"queue": "old"}', 'young');
SELECT queue.resume('young');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'young');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'young');
-- If a younger one runs by then, it is the next.
SELECT count(queue.push(q, to_jsonb(n || ' of ' || q), group_key => 'g')) FROM (VALUES (1, 'old'), (2, 'young'), (3, 'young')) AS v (n, q);
SELECT id, token, payload FROM queue.claim('1 minute', 'young') \gset
SELECT :'payload';
CALL queue.move_where('{"queue": "old"}', 'young');
SELECT count(*) FROM queue.claim('1 minute', 'young');
SELECT queue.complete(:id, :token);
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'young');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'young');

-- With delayed_head 'pass', a delayed task that becomes due is next.
SELECT queue.create('next', '{"delayed_head": "pass"}');
SELECT queue.push('next', '"head"', group_key => 'g', delay => '1 hour') AS head \gset
SELECT count(queue.push('next', to_jsonb(n), group_key => 'g')) FROM generate_series(1, 3) AS n;
SELECT id, token, payload FROM queue.claim('1 minute', 'next') \gset
SELECT :'payload' AS payload;
UPDATE queue.tasks SET run_at = clock_timestamp() WHERE id = :head;
SELECT queue.complete(:id, :token);
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'next');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'next');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'next');
-- With 'block', it blocks the others again.
SELECT queue.push('next', '"late"', group_key => 'g', delay => '1 hour') AS late, queue.push('next', '"behind"', group_key => 'g') \gset
SELECT queue.configure('next', '{"delayed_head": "block"}');
SELECT payload FROM queue.claim('1 minute', 'next');
UPDATE queue.tasks SET run_at = clock_timestamp() WHERE id = :late;
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'next');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'next');

-- The next sweep finds changes without an event: a task deleted by hand, and lost events.
SELECT queue.create('lost');
SELECT count(queue.push('lost', to_jsonb(n), group_key => g)) FROM generate_series(1, 3) AS n, unnest('{x,y}'::text[]) AS g;
SELECT payload, group_key FROM queue.claim('1 minute', 'lost', 10);
DELETE FROM queue.tasks WHERE queue = 'lost' AND state = 'running' AND group_key = 'x';
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE queue = 'lost' AND state = 'running';
DELETE FROM queue_internal.events;
CALL queue.maintain();
SELECT payload, group_key FROM queue.claim('1 minute', 'lost', 10);

-- An event that cannot be processed delays no other, and is tried again later.
ALTER TABLE queue.tasks ADD CONSTRAINT refuse CHECK (group_key <> 'x' OR admission <> 1 OR payload <> '3');
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE queue = 'lost' AND state = 'running';
SET client_min_messages = error;
SELECT payload, group_key FROM queue.claim('1 minute', 'lost', 10);
SELECT payload, group_key FROM queue.claim('1 minute', 'lost', 10);
SELECT group_key, tries > 0 AS tried, error FROM queue_internal.events;
ALTER TABLE queue.tasks DROP CONSTRAINT refuse;
UPDATE queue_internal.events SET due_at = '-infinity';
SELECT payload, group_key FROM queue.claim('1 minute', 'lost', 10);
SELECT count(*) FROM queue_internal.events;
-- The columns of an event.
\set VERBOSITY sqlstate
INSERT INTO queue_internal.events (queue) VALUES ('lost');
\set VERBOSITY terse
SELECT (queue_internal.reap(NULL)).reaped;

-- A session that processes events of all queues stops after a number of them, and takes no advisory lock.
SELECT count(queue.create('many' || n)) FROM generate_series(1, 30) AS n;
INSERT INTO queue_internal.events (queue, group_key) SELECT 'many' || n, 'g' || m FROM generate_series(1, 30) AS n, generate_series(1, 20) AS m;
BEGIN;
SELECT queue_internal.process_all_events(50) BETWEEN 1 AND 100 AS bounded;
SELECT count(*) AS advisory FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;

-- An event that was left by a changed limit is processed with the new limit, also by a claim that has read the old one.
BEGIN;
SELECT queue.create('stale', '{"max_running_per_group": 1}');
SELECT count(queue.push('stale', group_key => 'g')) FROM generate_series(1, 3);
SELECT queue_internal.process_events(jsonb_populate_record(q, '{"max_running_per_group": 3}'), 100, 0) > 0 AS processed
FROM queue.queues AS q WHERE q.name = 'stale';
SELECT count(*) AS admitted FROM queue.tasks WHERE queue = 'stale' AND admission = 1;
ROLLBACK;

-- A smaller limit holds from the next claim on, also for tasks that were admitted under the larger one.
BEGIN;
SELECT queue.create('smaller', '{"max_running_per_group": 2}');
SELECT count(queue.push('smaller', group_key => 'g' || n / 2, priority => n % 2)) FROM generate_series(0, 79) AS n;
SELECT queue_internal.process_events(q, 1000, 0, until => 'infinity') > 0 AS processed FROM queue.queues AS q WHERE q.name = 'smaller';
SELECT count(*) AS admitted FROM queue.tasks WHERE queue = 'smaller' AND admission = 1;
SELECT count(DISTINCT group_key) AS groups FROM queue.claim('1 minute', 'smaller', 40);
SELECT queue.configure('smaller', '{"max_running_per_group": 1}');
SELECT max(running) FROM (
    SELECT (SELECT count(*) FROM queue.claim('1 minute', 'smaller')), 0 AS running
    UNION ALL
    SELECT 0, count(*) FROM queue.tasks WHERE queue = 'smaller' AND state = 'running' GROUP BY group_key) AS g;
ROLLBACK;

-- With a limit above 1, a task that waits takes one place, and the others go on behind it.
BEGIN;
SELECT queue.create('places', '{"max_running_per_group": 2}');
SELECT queue.push('places') AS predecessor \gset
SELECT queue.push('places', '1', group_key => 'g', after => ARRAY[:predecessor]::bigint[]);
SELECT count(queue.push('places', to_jsonb(n), group_key => 'g')) FROM generate_series(2, 4) AS n;
-- The predecessor, and one task of the group.
SELECT payload, group_key FROM queue.claim('1 minute', 'places', 5);
SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'places' AND payload = '2';
SELECT payload, group_key FROM queue.claim('1 minute', 'places', 5);
-- The first one is ready now, and takes its place.
SELECT queue.complete(id, token) FROM queue.tasks WHERE id = :predecessor;
SELECT payload, group_key FROM queue.claim('1 minute', 'places', 5);
ROLLBACK;

-- A delayed task that others pass becomes open also while its group is full, and never takes the place of one that may run.
BEGIN;
SELECT queue.create('opened', '{"delayed_head": "pass"}');
SELECT queue.push('opened', group_key => 'g') > 0 AS pushed, queue.push('opened', group_key => 'g', delay => '1 hour') > 0 AS pushed;
SELECT count(*) FROM queue.claim('1 minute', 'opened', 5);
SELECT s.admit IS NOT NULL AS admits, s.opens
FROM queue.queues AS q, queue_internal.admitted_of(q, 'g') AS a,
     queue_internal.next_admission(q, 'g', a.admitted, a.ready, a.latest, a.used) AS s WHERE q.name = 'opened';
UPDATE queue.tasks SET admission = 2 WHERE queue = 'opened' AND state = 'queued';
SELECT s.admit IS NOT NULL AS admits, s.opens
FROM queue.queues AS q, queue_internal.admitted_of(q, 'g') AS a,
     queue_internal.next_admission(q, 'g', a.admitted, a.ready, a.latest, a.used) AS s WHERE q.name = 'opened';
SELECT queue_internal.admit_next('opened', 'g', 'infinity');
SELECT state, admission FROM queue.tasks WHERE queue = 'opened' ORDER BY id;
ROLLBACK;

-- A snapshot may not show what was admitted under the old options.
SELECT queue.create('snapshot');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue.configure('snapshot', '{"max_running_per_group": 2}');
ROLLBACK;
-- What does not change the options of groups.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue.configure('snapshot', '{"max_running_per_group": 1, "rate_limit": 9, "rate_period": "1 second"}');
COMMIT;
SELECT queue.drop('snapshot');

-- Where one task of a group runs at a time, its end admits the next one, and leaves no event.
SELECT queue.create('turns');
SELECT count(queue.push('turns', to_jsonb(n), group_key => 'g')) FROM generate_series(1, 6) AS n;
CREATE TEMP VIEW turns AS
SELECT t.payload, t.admission, (SELECT count(*) FROM queue_internal.events AS e WHERE e.queue = 'turns') AS events
FROM queue.tasks AS t WHERE t.queue = 'turns' AND t.admission < 2;
SELECT id, token FROM queue.claim('1 minute', 'turns') \gset
SELECT queue.complete(:id, :token);
TABLE turns;
SELECT queue.complete_many(array_agg(id), array_agg(token)) IS NOT NULL AS done FROM queue.claim('1 minute', 'turns', 5);
TABLE turns;
SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'turns');
TABLE turns;
-- Other ends leave the turn to the next claim: a purge takes all tasks.
SELECT queue.purge('turns') AS purged, (SELECT count(*) FROM queue.tasks WHERE queue = 'turns') AS before;
SELECT count(*) FROM queue.tasks WHERE queue = 'turns';
SELECT queue.drop('turns');
