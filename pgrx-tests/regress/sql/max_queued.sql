\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A queue with max_queued refuses pushes when it has so many queued tasks.
SELECT queue.create('small', '{"max_queued": 3, "max_attempts": 5, "backoff": {"base": "0"}}');
SELECT queue.push('small'), queue.push('small', delay => '1 hour'), queue.push('small');
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
-- A task that runs makes room.
SELECT id, token FROM queue.claim('1 minute', 'small');
SELECT queue.push('small');
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
-- Whatever gives a task back to its queue is never refused.
SELECT queue.fail(1, 1, 'no', '0');
SELECT queued + scheduled AS depth FROM queue.stats WHERE queue = 'small';
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
SELECT id, token FROM queue.claim('1 minute', 'small', 9);
SELECT queue.release(1, 2), queue.fail(3, 1, 'no', permanent => true), queue.fail(4, 1, 'no', permanent => true);
SELECT queue.push('small');
SELECT queue.redrive('small');
SELECT queued, scheduled FROM queue.stats WHERE queue = 'small';
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
CALL queue.purge_where('{"all": true}');

-- Tasks that are blocked in their group count. Tasks that wait for others count once they are queued, but are not pushed to
-- a full queue.
SELECT queue.push('small', group_key => 'g') AS first, queue.push('small', group_key => 'g'), queue.push('small', group_key => 'g') \gset
SELECT pg_temp.refused(format($$SELECT queue.push('small', after => ARRAY[%s])$$, :first));
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'small');
SELECT queue.push('small', after => ARRAY[:first + 1]), queue.push('small', after => ARRAY[:first + 1]);
SELECT queued, blocked, waiting FROM queue.stats WHERE queue = 'small';
SELECT queue.push('small') IS NOT NULL AS added;
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
CALL queue.purge_where('{"all": true}');

-- Several tasks at once are added or refused as a whole.
SELECT count(*) FROM queue.push_many('small', '{1, 2}');
SELECT pg_temp.refused($$SELECT queue.push_many('small', '{3, 4}')$$);
SELECT pg_temp.refused($$SELECT queue.push_tasks('[{"queue": "small"}, {"queue": "small"}]')$$);
SELECT split_part(pg_temp.refused($$INSERT INTO queue.tasks (queue) VALUES ('small'), ('small')$$), E'\n', 1) AS refused;
SELECT count(*) FROM queue.tasks;
INSERT INTO queue.tasks (queue) VALUES ('small');
SELECT pg_temp.refused($$SELECT queue.try_push('small')$$);
SELECT pg_temp.refused($$SELECT queue.try_push('small', key => 'k')$$);
SELECT pg_temp.refused($$SELECT queue.push_many('small', '{3, 4}', keys => '{a, b}')$$);
SELECT pg_temp.refused($$SELECT queue.create_batch('small')$$);
SELECT pg_temp.refused(format('SELECT queue.push(''small'', batch => %s)', queue.create_batch('default')));
SELECT pg_temp.refused(format('SELECT queue.push_many(''small'', ''{1}'', batch => %s)', queue.create_batch('default')));
SELECT queue.purge('default');
SELECT count(*) FROM queue.tasks;
-- A transaction counts its own tasks.
BEGIN;
CALL queue.purge_where('{"all": true}');
SELECT count(*) FROM queue.push_many('small', '{1, 2, 3}');
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
ROLLBACK;
-- Also many, at times that are all different.
SELECT queue.create('many', '{"max_queued": 600}');
SELECT pg_temp.refused($$SELECT queue.push('many', run_at => '2100-01-01'::timestamptz + n * interval '1 hour') FROM generate_series(1, 700) AS n$$);
-- In SQL, a session uses a count for a while if it has read many index entries, also those of tasks that have ended. The
-- edition for YugabyteDB does not know how many.
BEGIN;
SELECT count(*) FROM queue.push_many('many', array_fill('1'::jsonb, ARRAY[200]));
DELETE FROM queue.tasks WHERE queue = 'many';
SELECT set_config('queue_depth.q' || md5('many'), '', false) AS kept;
SELECT queue_internal.depth_in_session(q, 0) FROM queue.queues AS q WHERE q.name = 'many';
SELECT current_setting('queue_depth.q' || md5('many'), true) <> '' OR queue_internal.entries_passed() = 0 AS kept;
ROLLBACK;
-- publish adds a task to each queue or to none.
SELECT queue.create('wide'), queue.bind('a.*', 'small'), queue.bind('a.*', 'wide');
SELECT pg_temp.refused($$SELECT queue.publish('a.b')$$);
SELECT count(*) FROM queue.tasks;
-- A push that adds nothing is not refused.
SELECT queue.purge('small');
SELECT queue.push('small', key => 'k') AS id, queue.push('small'), queue.push('small') \gset
SELECT queue.push('small', key => 'k') = :id AS same, queue.push('small', '1', key => 'k', on_duplicate => 'replace') = :id AS replaced;
-- A schedule keeps its run for later and records why.
SELECT queue.schedule('s', '* * * * *', 'small') IS NOT NULL AS next;
UPDATE queue.schedules SET next_run_at = date_trunc('minute', now());
CALL queue.maintain();
SELECT last_run_at, last_error FROM queue.schedules;
SELECT queue.unschedule('s');
-- Moving tasks into the queue is not refused either.
SELECT queue.push('wide');
CALL queue.move_where('{"queue": "wide"}', 'small');
SELECT pg_temp.refused($$SELECT queue.push('small')$$);

-- The option can be changed at any time, and removed.
SELECT queue.configure('small', '{"max_queued": 2}');
SELECT pg_temp.refused($$SELECT queue.push('small')$$);
SELECT count(*) FROM queue.push_many('small', '{}');
SELECT queue.configure('small', '{"max_queued": null}'), queue.push('small') IS NOT NULL AS added;
SELECT pg_temp.refused($$SELECT queue.configure('small', '{"max_queued": 0}')$$);
SELECT pg_temp.refused($$SELECT queue.configure('small', '{"max_queued": 1.5}')$$);
