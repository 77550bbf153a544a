\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Lets the start deadline of a task pass.
CREATE FUNCTION pg_temp.late(task bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE queue.tasks SET start_by = clock_timestamp() - interval '1 second' WHERE id = task;
$$;
CREATE VIEW pg_temp.ended AS
    SELECT id, queue, state, attempt, token, errors -> -1 ->> 'error' AS error FROM queue.all_tasks
    WHERE finished_at IS NOT NULL ORDER BY id;

SELECT queue.create('codes', '{"ttl": "5 minutes"}'), queue.create('hints', '{"on_expired": "cancel"}'), queue.create('plain');

-- A task can have a start deadline: as a time, as an interval from its push, or as the option of its queue.
SELECT queue.push('plain', start_by => '2100-01-01'), queue.push('plain', ttl => '1 hour'), queue.push('codes'),
       queue.push('codes', ttl => '1 hour'), queue.push('codes', start_by => '2100-01-01'), queue.push('plain');
SELECT id, round(extract(epoch FROM start_by - created_at) / 60) AS minutes FROM queue.tasks WHERE start_by < '2100-01-01' ORDER BY id;
SELECT id, start_by = '2100-01-01' AS far FROM queue.tasks WHERE start_by IS NULL OR start_by >= '2100-01-01' ORDER BY id;
-- Both at once are refused, and so is what is no deadline.
SELECT pg_temp.refused($$SELECT queue.push('plain', start_by => '2100-01-01', ttl => '1 hour')$$);
SELECT pg_temp.refused($$SELECT queue.push('plain', start_by => 'infinity')$$);
SELECT pg_temp.refused($$SELECT queue.push('plain', ttl => '0')$$);
SELECT pg_temp.refused($$SELECT queue.push('plain', ttl => '-1 s')$$);
SELECT pg_temp.refused($$SELECT queue.push('plain', ttl => '101 years')$$);
SELECT pg_temp.refused($$SELECT queue.configure('plain', '{"ttl": "0"}')$$);
SELECT pg_temp.refused($$SELECT queue.configure('plain', '{"on_expired": "drop"}')$$);
-- A start deadline that has not passed changes nothing.
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'plain', 9);
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'codes', 9);
SELECT id, round(extract(epoch FROM start_by - created_at) / 60) AS minutes FROM queue.history WHERE id IN (2, 3) ORDER BY id;
TRUNCATE queue.history;

-- No claim starts a task whose deadline has passed. It becomes a dead letter, or is cancelled, as its queue says.
SELECT queue.push('plain', '"late"', start_by => '2020-01-01') AS late, queue.push('plain', '"in time"', ttl => '1 hour') AS id \gset
SELECT payload FROM queue.claim('1 minute', 'plain', 9);
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT id = :late AS late, queue, state, attempt, error FROM pg_temp.ended;
SELECT queue.push('hints', start_by => '2020-01-01') AS hint \gset
SELECT count(*) FROM queue.claim('1 minute', 'hints');
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT queue, state, attempt, error, count(*) OVER () FROM pg_temp.ended;
-- A task that was started in time is not subject to its deadline any more, however often it returns to its queue.
SELECT queue.push('plain', '"retried"', ttl => '1 hour', priority => 1), queue.push('plain', '"released"', ttl => '1 hour', priority => 1);
SELECT queue.fail(id, token, 'no', '0') FROM queue.claim('1 minute', 'plain');
SELECT queue.release(id, token) FROM queue.claim('1 minute', 'plain', 2);
SELECT pg_temp.late(id) FROM queue.tasks WHERE priority = 1;
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT payload, attempt FROM queue.claim('1 minute', 'plain', 9);
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE state = 'running';

-- The dead letter of a late task is an ordinary one. Back in its queue, it has no deadline, also not that of the queue.
SELECT queue.push('codes', start_by => '2020-01-01') AS code \gset
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT state, start_by FROM queue.get(:code);
SELECT queue.retry(:code);
SELECT state, start_by FROM queue.get(:code);
SELECT queue.retry(:late), queue.redrive('plain');
SELECT payload, start_by FROM queue.claim('1 minute', 'plain', 9) JOIN queue.tasks USING (id, payload);
-- A new task like it has the deadline of the queue.
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'codes', 9);
SELECT queue.run_again(:code) AS again \gset
SELECT start_by IS NOT NULL AS dated FROM queue.get(:again);
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE state = 'running';
SELECT queue.purge('plain');

-- A task that is scheduled for later ends as well, and so does one that waits for others. Its dependents learn of it as of
-- any other end.
SELECT queue.push('plain', delay => '1 hour', ttl => '1 minute') AS later, queue.push('plain', '"first"') AS first \gset
SELECT queue.push('plain', '"second"', after => ARRAY[:first], ttl => '1 minute') AS second \gset
SELECT queue.push('plain', '"third"', after => ARRAY[:second]) AS third \gset
SELECT queue.push('plain', '"fourth"', after => ARRAY[:second], on_predecessor_failure => 'continue') AS fourth \gset
SELECT pg_temp.late(:later), pg_temp.late(:second);
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT payload FROM queue.claim('1 minute', 'plain', 9);
SELECT payload, state, errors -> 0 ->> 'error' = format('predecessor %s failed', :second) AS told FROM queue.all_tasks
WHERE id IN (:second, :third, :fourth) ORDER BY id;
SELECT count(*) FROM queue_internal.dependencies;
-- A batch counts it, and a callback that waits for its batch can be late itself.
SELECT queue.create_batch('plain', '"callback"', priority => 3) AS batch, queue.create_batch('hints', ttl => '1 minute') AS late_batch \gset
SELECT queue.push('plain', batch => :batch, start_by => '2020-01-01'), queue.push('hints', batch => :batch, start_by => '2020-01-01'),
       queue.push('hints', batch => :late_batch, delay => '1 hour');
SELECT queue.seal_batch(:batch), pg_temp.late(:late_batch);
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT payload, headers FROM queue.claim('1 minute', 'plain', 9);
SELECT state FROM queue.get(:late_batch);
SELECT count(*) FROM queue_internal.batches;
SELECT pg_temp.refused(format('SELECT queue.push(''hints'', batch => %s)', :late_batch));
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE state = 'running';
CALL queue.purge_where('{"all": true}');

-- In a group, the next task has its turn.
SELECT queue.push('plain', '1', group_key => 'g', ttl => '1 hour') AS one, queue.push('plain', '2', group_key => 'g') \gset
SELECT pg_temp.late(:one);
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT payload FROM queue.claim('1 minute', 'plain', 9);
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE state = 'running';

-- The key of a late task is free at once if the task is a dead letter. If it is cancelled, its key_ttl counts.
SELECT queue.push('plain', key => 'k', key_ttl => '1 hour', start_by => '2020-01-01') AS one,
       queue.push('hints', key => 'k', key_ttl => '1 hour', start_by => '2020-01-01') AS two \gset
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT queue.push('plain', key => 'k') > :two AS added, queue.push('hints', key => 'k') = :two AS kept;
-- on_duplicate replace gives the task the new deadline, also none; reschedule leaves it.
SELECT queue.push('plain', key => 'k', on_duplicate => 'replace', start_by => '2100-01-01') AS id \gset
SELECT start_by = '2100-01-01' AS new FROM queue.get(:id);
SELECT queue.push('plain', key => 'k', on_duplicate => 'reschedule', start_by => '2200-01-01') = :id AS same;
SELECT start_by = '2100-01-01' AS new FROM queue.get(:id);
SELECT queue.push('plain', key => 'k', on_duplicate => 'replace') = :id AS same;
SELECT start_by FROM queue.get(:id);
-- A push that finds the key with a late task, which no worker has ended yet, does not rely on it.
BEGIN;
SELECT queue.push('plain', key => 'l', start_by => '2020-01-01') AS one \gset
SELECT pushed FROM queue.try_push('plain', key => 'l', start_by => '2020-01-01');
SELECT queue.push('plain', key => 'l', on_duplicate => 'reschedule', start_by => '2020-01-01') > :one AS added;
SELECT queue.push('plain', key => 'l', on_duplicate => 'error') > :one AS added;
SELECT state, error FROM pg_temp.ended WHERE id >= :one;
SELECT queue.push('hints', key => 'l', key_ttl => '1 hour', start_by => '2020-01-01') AS one \gset
SELECT queue.push('hints', key => 'l') = :one AS same;
ROLLBACK;
-- Nor does anything else that takes a key: replace, a plain INSERT, a dead letter that is put back, a task that is moved.
BEGIN;
SELECT queue.push('plain', key => 'm', start_by => '2020-01-01') AS one \gset
SELECT queue.push('plain', key => 'm', on_duplicate => 'replace', start_by => '2020-01-01') > :one AS added;
INSERT INTO queue.tasks (queue, key, start_by) VALUES ('plain', 'm', '2020-01-01') RETURNING key;
SELECT queue.retry(:one);
SELECT id = :one AS back FROM queue.tasks WHERE key = 'm';
SELECT queue.push('codes', key => 'm', start_by => '2020-01-01') AS two \gset
SELECT queue_internal.move(t, 'codes') FROM queue.tasks AS t WHERE t.id = :one;
SELECT id = :one AS moved FROM queue.tasks WHERE key = 'm';
SELECT count(*) FROM pg_temp.ended WHERE id >= :one;
-- Also by a push that waits for that very task: it has ended.
SELECT queue.push('plain', key => 'n', start_by => '2020-01-01') AS one \gset
SELECT queue.push('plain', key => 'n', after => ARRAY[:one], on_predecessor_failure => 'continue') AS two \gset
SELECT predecessor_id = :one AS one, outcome FROM queue_internal.dependencies WHERE task_id = :two;
ROLLBACK;
-- A task that waits to replace a running one gives the key back when it is late.
SELECT count(*) FROM queue.claim('1 minute', 'plain');
SELECT queue.push('plain', key => 'k', on_duplicate => 'replace', ttl => '1 hour') AS next \gset
SELECT pg_temp.late(:next);
SELECT queue.reap() IS NOT NULL AS reaped;
SELECT task_id = :id AS back FROM queue_internal.keys WHERE queue = 'plain' AND key = 'k';
SELECT queue.complete(:id, token) FROM queue.tasks WHERE id = :id;
CALL queue.purge_where('{"all": true}');

-- Every function that pushes has the arguments.
SELECT pushed FROM queue.try_push('plain', ttl => '1 hour');
SELECT pushed FROM queue.try_push('plain', ttl => '1 hour', key => 't');
SELECT count(*) FROM queue.push_many('plain', '{1, 2}', start_by => '2100-01-01');
SELECT count(*) FROM queue.push_many('plain', '{1, 2}', start_by => '2100-01-01', keys => '{a, b}');
SELECT count(*) FROM queue.push_tasks('[{"queue": "plain", "ttl": "1 hour"}, {"queue": "codes", "key": "p"}, {"queue": "plain", "start_by": "2100-01-01"}]');
SELECT queue.bind('a.*', 'plain');
SELECT count(*) FROM queue.publish('a.b', ttl => '1 hour');
SELECT count(*) FROM queue.publish('a.b', key => 'u', ttl => '1 hour');
SELECT queue.schedule('s', '0 0 1 1 *', 'plain', options => '{"ttl": "1 hour"}') IS NOT NULL AS next, queue.run_schedule('s') IS NOT NULL AS id;
INSERT INTO queue.tasks (queue, start_by) VALUES ('plain', '2100-01-01');
INSERT INTO queue.tasks (queue) VALUES ('codes'), ('codes');
SELECT queue, key, CASE WHEN start_by = '2100-01-01' THEN 'far' ELSE round(extract(epoch FROM start_by - created_at) / 60)::text END AS minutes
FROM queue.tasks ORDER BY id;
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, start_by) VALUES ('plain', 'infinity')$$);
SELECT pg_temp.refused($$SELECT queue.schedule('s', '* * * * *', 'plain', options => '{"ttl": "0"}')$$);
SELECT pg_temp.refused($$SELECT queue.push_tasks('[{"queue": "plain", "ttl": 5}]')$$);
SELECT pg_temp.refused($$SELECT queue.push_tasks('[{"queue": "plain", "start_by": "soon"}]')$$);
CALL queue.purge_where('{"all": true}');

-- A task whose deadline passes while a claim starts the tasks before it takes none of the starts of its queue.
SELECT queue.create('limited', '{"rate_limit": 2, "rate_period": "1 hour"}');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0.3) WHERE NEW.payload = '"slow"';
    RETURN NEW;
END
$$;
BEGIN;
CREATE TRIGGER slow BEFORE UPDATE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION slow();
SELECT count(*) FROM (VALUES (queue.push('limited', '"slow"')), (queue.push('limited', '"late"', ttl => '0.2 s')), (queue.push('limited', '"next"'))) AS p;
SELECT payload FROM queue.claim('1 minute', 'limited', 9);
ROLLBACK;
DROP FUNCTION slow();

-- queue.stats does not count a late task as due for long, and queue.wait does not wait for it.
SELECT queue.push('plain', start_by => '2020-01-01');
SELECT oldest_due_age FROM queue.stats WHERE queue = 'plain';
SELECT count(*) FROM queue.claim('1 minute', 'plain');
CALL queue.wait('plain', '0');
CALL queue.maintain();
SELECT state, error FROM pg_temp.ended WHERE state = 'failed';

-- A task that takes the key of the callback of a batch, which is past its start deadline, ends it: it cannot join that batch.
SELECT queue.create_batch('plain', key => 'callback') AS batch \gset
SELECT pg_temp.late(:batch);
SELECT left(pg_temp.refused(format($$SELECT queue.push('plain', key => 'callback', batch => %s)$$, :batch)), 5);
SELECT left(pg_temp.refused(format($$SELECT queue.push_many('plain', '{1, 2}', keys => '{a2, callback}', batch => %s)$$, :batch)), 5);
SELECT queue.push('plain', key => 'callback') <> :batch AS added;

-- A late task that cannot be ended keeps its key. The push fails: it is not skipped.
SELECT queue.push('plain', key => 'kept') AS kept \gset
SELECT pg_temp.late(:kept);
ALTER TABLE queue.dead_letters ADD CONSTRAINT kept CHECK (key <> 'kept');
-- The error does not show the row of that task.
SELECT replace(pg_temp.refused($$SELECT queue.push('plain', key => 'kept')$$), :'kept', 'N') AS refused;
ALTER TABLE queue.dead_letters DROP CONSTRAINT kept;
SELECT queue.push('plain', key => 'kept') > :kept AS added;
-- A call for many tasks leaves out the one that needs the key.
SELECT queue.push('hints', key => 'kept') AS dead, queue.push('hints') AS other \gset
SELECT count(queue.fail(id, token, 'no', permanent => true)) FROM queue.claim('1 minute', 'hints', 9);
ALTER TABLE queue.history ADD CONSTRAINT kept CHECK (key <> 'kept');
SELECT queue.push('hints', key => 'kept') AS kept \gset
SELECT pg_temp.late(:kept);
SELECT queue.redrive('hints');
-- A call for one task says why.
SELECT left(pg_temp.refused(format($$SELECT queue.retry(%s)$$, :dead)), 5);
ALTER TABLE queue.history DROP CONSTRAINT kept;
SELECT queue.redrive('hints');
