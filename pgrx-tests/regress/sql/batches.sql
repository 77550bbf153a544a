\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A batch calls back when all of its tasks have ended. The callback is a task that waits; its id is the id of the batch.
SELECT queue.create('work'), queue.create('done');
SELECT queue.create_batch('done', '"all reports are there"', headers => '{"trace": 7}') AS batch \gset
SELECT queue.push('work', '"one"', batch => :batch) > :batch AS pushed;
SELECT count(*) FROM queue.push_many('work', ARRAY['"two"', '"three"']::jsonb[], batch => :batch);
SELECT pushed FROM queue.try_push('work', '"four"', batch => :batch);
SELECT count(*) FROM queue.push_tasks(jsonb_build_array(
    jsonb_build_object('queue', 'work', 'payload', 'five', 'batch', :batch), '{"queue": "work", "payload": "of no batch", "priority": 1}'::jsonb));
SELECT state FROM queue.get(:batch);
SELECT batch = :batch AS same, queue, age >= '0' AS age, sealed_at, unfinished, completed, failed, cancelled FROM queue.batches;
SELECT count(*) AS tasks, outcome, on_failure, is_batch FROM queue.dependencies WHERE task_id = :batch GROUP BY 2, 3, 4;
-- It may grow, also by its own tasks while they run, until it is sealed.
SELECT id, token FROM queue.claim('1 minute', 'work') \gset
SELECT queue.push('work', '"six"', batch => :batch) > 0 AS pushed;
SELECT queue.complete(:id, :token);
SELECT count(*) FROM queue.claim('1 minute', 'done');
SELECT queue.seal_batch(:batch);
SELECT queue.seal_batch(:batch) IS NOT NULL AS "sealing it again does nothing";
SELECT regexp_replace(pg_temp.refused(format($$SELECT queue.push('work', batch => %s)$$, :batch)), '(batch) \d+|(sealed at) [^\n]*', '\1\2 ...', 'g') AS sealed;
-- A task that is retried has not ended. One that fails for good counts as failed.
SELECT queue.configure('work', '{"max_attempts": 2, "backoff": {"base": "0"}}');
SELECT queue.fail(id, token, 'once') FROM queue.claim('1 minute', 'work');
SELECT id AS failed, token FROM queue.claim('1 minute', 'work') \gset
SELECT queue.fail(:failed, :token, 'twice');
SELECT queue.cancel(id) FROM (SELECT id FROM queue.tasks WHERE queue = 'work' AND payload = '"four"') AS t;
SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('1 minute', 'work', 2)), ARRAY[1, 1]);
SELECT unfinished, completed, failed, cancelled FROM queue.batches;
SELECT count(*) FROM queue.claim('1 minute', 'done');
-- A task that is redriven afterwards no longer belongs to the batch.
SELECT queue.retry(:failed);
SELECT payload, queue.complete(id, token) FROM queue.claim('1 minute', 'work', 2);
-- The last end makes the callback claimable. Its headers count.
SELECT id = :batch AS same, payload, headers FROM queue.claim('1 minute', 'done', 9);
SELECT count(*) AS batches FROM queue.batches;
SELECT count(*) AS left_behind FROM queue_internal.dependencies;
SELECT pg_temp.refused(format($$SELECT queue.push('work', batch => %s)$$, :batch)) ~ '^QX007: batch \d+ does not exist' AS over;
SELECT queue.purge('work') > 0 AS purged;

-- An empty batch calls back as soon as it is sealed.
SELECT queue.create_batch('done', '"nothing to do"') AS batch \gset
SELECT queue.seal_batch(:batch);
SELECT payload, headers FROM queue.claim('1 minute', 'done');
-- So does one whose tasks have ended already.
SELECT queue.create_batch('done', '"sealed late"') AS batch \gset
SELECT queue.push('work', batch => :batch) > 0 AS pushed;
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'work');
SELECT count(*) FROM queue.claim('1 minute', 'done');
SELECT queue.seal_batch(:batch);
SELECT payload, headers FROM queue.claim('1 minute', 'done');

-- Whatever an option does for other tasks it does for the callback: here a group, a delay and a key.
SELECT queue.create_batch('done', '"grouped"', group_key => 'g', key => 'k', run_at => now() + interval '1 hour') AS batch \gset
SELECT queue.create_batch('done', key => 'k') = :batch AS "one batch of a key";
SELECT queue.seal_batch(:batch);
SELECT count(*) FROM queue.claim('1 minute', 'done');
SELECT state, run_at > now() AS later, group_key, headers FROM queue.get(:batch);
SELECT queue.cancel(:batch);

-- A push whose key is taken adds nothing to the batch.
SELECT queue.create_batch('done', '"keys"') AS batch \gset
SELECT queue.push('work', '"earlier"', key => 'k') AS earlier \gset
SELECT queue.push('work', batch => :batch, key => 'k') = :earlier AS taken;
SELECT count(*) FROM queue.push_many('work', ARRAY['1', '2', '3']::jsonb[], keys => '{k,l,NULL}', batch => :batch);
SELECT unfinished FROM queue.batches;
-- Tasks that are purged, or deleted by hand, count as cancelled.
SELECT queue.seal_batch(:batch);
SELECT queue.purge('work');
SELECT payload, headers FROM queue.claim('1 minute', 'done');

-- If the callback is cancelled, its tasks go on, and the batch is over.
SELECT queue.create_batch('done') AS batch \gset
SELECT queue.push('work', '"goes on"', batch => :batch) > 0 AS pushed;
SELECT queue.cancel(:batch);
SELECT left(pg_temp.refused(format('SELECT queue.seal_batch(%s)', :batch)), 5);
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'work');
SELECT (SELECT count(*) FROM queue_internal.dependencies) AS dependencies, (SELECT count(*) FROM queue_internal.batches) AS batches;

-- The callback may wait for other tasks too, and be a task of another batch.
SELECT queue.push('work', '"before"') AS before \gset
SELECT queue.create_batch('done', '"outer"') AS outer \gset
SELECT queue.create_batch('done', '"inner"', batch => :outer, after => ARRAY[:before]) AS inner \gset
SELECT queue.seal_batch(:outer), queue.seal_batch(:inner);
SELECT count(*) FROM queue.claim('1 minute', 'done');
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'work');
SELECT queue.complete(id, token), payload, headers FROM queue.claim('1 minute', 'done');
SELECT queue.complete(id, token), payload, headers FROM queue.claim('1 minute', 'done');
SELECT queue.push('work', '"before"') AS before \gset
SELECT queue.create_batch('done', '"of a failure"', after => ARRAY[:before], on_predecessor_failure => 'fail') AS batch \gset
SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'work');
SELECT count(*) FROM queue.claim('1 minute', 'done');
SELECT state, errors -> -1 ->> 'error' ~ '^predecessor \d+ failed$' AS error FROM queue.get(:batch);
-- A task of a batch must not wait for its callback, directly or not.
SELECT queue.create_batch('done') AS batch \gset
SELECT queue.push('work', after => ARRAY[:batch]) AS follower \gset
SELECT left(pg_temp.refused(format($$SELECT queue.push('work', batch => %s, after => '{%1$s}')$$, :batch)), 65);
SELECT left(pg_temp.refused(format($$SELECT queue.push('work', batch => %s, after => '{%s}')$$, :batch, :follower)), 65);
SELECT left(pg_temp.refused(format($$SELECT queue.create_batch('work', batch => %s, after => '{%s}')$$, :batch, :follower)), 65);
SELECT queue.drop('done', true);
SELECT (SELECT count(*) FROM queue_internal.batches) AS batches, count(*) AS members FROM queue_internal.dependencies WHERE on_failure = 'batch';
SELECT queue.create('done');

-- push_many into a batch is one INSERT. More tasks than one event counts.
CREATE TEMP TABLE fired (number integer);
GRANT INSERT ON fired TO PUBLIC;
CREATE FUNCTION pg_temp.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO pg_temp.fired VALUES (1); RETURN NULL; END';
CREATE TRIGGER fires AFTER INSERT ON queue.tasks FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.fires();
CREATE TRIGGER fires AFTER INSERT ON queue_internal.dependencies FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.fires();
SELECT queue.create_batch('done', '"large"') AS batch \gset
TRUNCATE fired;
SELECT count(*) FROM queue.push_many('work', array_fill('1'::jsonb, ARRAY[2500]), batch => :batch);
SELECT count(*) AS inserts FROM fired;
DROP TRIGGER fires ON queue.tasks;
DROP TRIGGER fires ON queue_internal.dependencies;
SELECT queue.seal_batch(:batch);
SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('1 minute', 'work', 2500)), array_fill(1::bigint, ARRAY[2500]));
CALL queue.maintain();
SELECT payload, headers FROM queue.claim('1 minute', 'done');

-- A lost event costs time only.
SELECT queue.create_batch('done', '"lost"') AS batch \gset
SELECT queue.push('work', batch => :batch) > 0 AS pushed;
BEGIN;
SELECT queue.seal_batch(:batch);
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'work');
DELETE FROM queue_internal.events;
COMMIT;
CALL queue.maintain();
SELECT payload, headers FROM queue.claim('1 minute', 'done');
SELECT queue.create_batch('done', '"lost and empty"') AS batch \gset
BEGIN;
SELECT queue.seal_batch(:batch);
DELETE FROM queue_internal.events;
COMMIT;
CALL queue.maintain();
SELECT payload, headers FROM queue.claim('1 minute', 'done');

-- A task that was deleted by hand is found, too.
SELECT queue.create_batch('done', '"deleted"') AS batch \gset
SELECT queue.push('work', batch => :batch) AS deleted \gset
SELECT queue.seal_batch(:batch);
DELETE FROM queue.tasks WHERE id = :deleted;
CALL queue.maintain();
CALL queue.maintain();
SELECT payload, headers FROM queue.claim('1 minute', 'done');

-- A batch that nobody seals is reported.
SELECT queue.create_batch('done') AS batch \gset
SELECT status, detail FROM queue.health() WHERE name = 'batches';
UPDATE queue.tasks SET created_at = now() - interval '26 hours 1 second' WHERE id = :batch;
SELECT status, regexp_replace(detail, '(oldest,) \d+|(hours).*', '\1\2 ...', 'g') AS detail, regexp_replace(hint, '\d+', '...', 'g') AS hint
FROM queue.health() WHERE name = 'batches';

-- Batches of other queues are treated as unknown.
SELECT pg_temp.refused('SELECT queue.seal_batch(4711)') AS unknown;
SELECT pg_temp.refused('SELECT queue.seal_batch(NULL)'), pg_temp.refused('SELECT queue.seal_batch(0)');
SELECT pg_temp.refused($$SELECT queue.push('work', batch => -1)$$);
CREATE ROLE batches_producer;
SELECT queue.grant_producer('batches_producer', 'work');
SET ROLE batches_producer;
SELECT queue.create_batch('work') AS own \gset
SELECT queue.push('work', batch => :own) > 0 AS pushed, queue.seal_batch(:own);
SELECT left(pg_temp.refused(format($$SELECT queue.push('work', batch => %s)$$, :batch)), 5) AS push,
       left(pg_temp.refused(format($$SELECT queue.push_many('work', '{1}', batch => %s)$$, :batch)), 5) AS push_many,
       left(pg_temp.refused(format('SELECT queue.seal_batch(%s)', :batch)), 5) AS seal_batch,
       left(pg_temp.refused($$SELECT queue.create_batch('done')$$), 5) AS create_batch;
RESET ROLE;
SELECT queue.revoke_producer('batches_producer', 'work');
DROP ROLE batches_producer;
-- The callback and the tasks of a batch can have a kind, a lease and a timeout, however they are pushed.
SELECT queue.create_batch('done', kind => 'report', lease => '2 minutes', timeout => '1 hour') AS batch \gset
SELECT queue.push('work', kind => 'letter', lease => '3 minutes', timeout => '4 hours', batch => :batch) > 0 AS push;
SELECT pushed FROM queue.try_push('work', key => 'a', kind => 'letter', lease => '3 minutes', timeout => '4 hours', batch => :batch);
SELECT count(*) AS push_many
FROM queue.push_many('work', '{1,2}', kind => 'letter', lease => '3 minutes', timeout => '4 hours', batch => :batch);
SELECT count(*) AS push_many_with_keys
FROM queue.push_many('work', '{1,2}', keys => '{b,c}', kind => 'letter', lease => '3 minutes', timeout => '4 hours', batch => :batch);
SELECT count(*) AS push_tasks FROM queue.push_tasks(format(
    '[{"queue": "work", "kind": "letter", "lease": "3 minutes", "timeout": "4 hours", "batch": %s}]', :batch)::jsonb);
SELECT unfinished FROM queue.batches WHERE batch = :batch;
SELECT queue, kind, lease, timeout, count(*) FROM queue.tasks WHERE id >= :batch GROUP BY queue, kind, lease, timeout ORDER BY queue;

-- A callback that waits holds up its group, so the tasks of its batch cannot be in it, unless the group passes over it.
SELECT queue.create('ordered');
SELECT queue.create_batch('ordered', group_key => 'g') AS batch \gset
SELECT left(pg_temp.refused(format($$SELECT queue.push('ordered', group_key => 'g', batch => %s)$$, :batch)), 5) AS same_group,
       left(pg_temp.refused(format(
           $$SELECT queue.push_many('ordered', '{1,2}', group_keys => '{f,g}', batch => %s)$$, :batch)), 5) AS push_many;
SELECT queue.push('ordered', group_key => 'f', batch => :batch) > 0 AS another_group,
       queue.push('done', group_key => 'g', batch => :batch) > 0 AS another_queue;
SELECT queue.configure('ordered', '{"delayed_head": "pass"}');
SELECT queue.push('ordered', group_key => 'g', batch => :batch) > 0 AS passed_over;

SELECT queue.drop('work', true), queue.drop('done', true), queue.drop('ordered', true);
