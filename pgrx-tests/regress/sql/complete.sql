\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.push('default', '"work"', headers => '{"request_id": "r"}') AS id \gset
SELECT token FROM queue.claim('1 minute', worker => 'w1') \gset
SELECT queue.complete(:id, :token, '{"answer": 42}');
SELECT count(*) FROM queue.tasks;
SELECT state, payload, headers, result, worker, attempt, token, finished_at >= claimed_at AS in_order FROM queue.history;

-- A task cannot be completed twice.
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :token));
SELECT pg_temp.refused('SELECT queue.complete(999999, 1)');

-- A stale token changes nothing, and the error rolls back the worker's own writes.
CREATE TABLE effects (id bigint);
SELECT queue.push('default') AS id \gset
SELECT token AS stale FROM queue.claim('1 minute') \gset
SELECT pg_temp.expire(:id);
SELECT token AS fresh FROM queue.claim('1 minute') \gset
\set ON_ERROR_ROLLBACK off
BEGIN;
INSERT INTO effects VALUES (:id);
SELECT queue.complete(:id, :stale);
COMMIT;
SELECT count(*) AS effects FROM effects;
SELECT state, token FROM queue.tasks WHERE id = :id;
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :stale));
SELECT pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :fresh + 1));
-- With a valid token, the worker's writes and the completion commit together.
BEGIN;
INSERT INTO effects VALUES (:id);
SELECT queue.complete(:id, :fresh);
COMMIT;
SELECT count(*) AS effects FROM effects;

-- A worker whose lease has expired can complete the task until the task is requeued.
SELECT queue.push('default') AS id \gset
SELECT token FROM queue.claim('1 minute') \gset
SELECT pg_temp.expire(:id);
SELECT queue.complete(:id, :token);

-- complete_many leaves out tasks with a stale token.
SELECT queue.push_many('default', ARRAY['1', '2', '3', '4']::jsonb[]);
SELECT array_agg(id ORDER BY id DESC) AS ids, array_agg(token ORDER BY id DESC) AS tokens
FROM queue.claim('1 minute', max_tasks => 4) \gset
SELECT pg_temp.expire((:'ids'::bigint[])[2]);
SELECT queue.reap();
SELECT queue.complete_many(:'ids', :'tokens', ARRAY['"r4"', '"r3"', '"r2"', '"r1"']::jsonb[]) - min(id) + 1 AS nth
FROM queue.all_tasks WHERE id = ANY (:'ids') GROUP BY ();
SELECT payload, result FROM queue.history WHERE id = ANY (:'ids') ORDER BY id;
SELECT queue.complete_many(:'ids', :'tokens');
SELECT queue.complete_many('{}', '{}');

-- Completes a task and claims the next one in one call.
SELECT queue.purge('default');
SELECT queue.push_many('default', ARRAY['"first"', '"second"']::jsonb[]);
SELECT id, token FROM queue.claim('1 minute') \gset
SELECT id AS next, token AS next_token, payload FROM queue.complete_and_claim(:id, :token, '1', '1 minute', worker => 'w') \gset
SELECT :'payload' AS payload;
SELECT * FROM queue.complete_and_claim(:next, :next_token);
SELECT pg_temp.refused(format('SELECT queue.complete_and_claim(%s, %s)', :id, :token));

-- A queue without a history.
SELECT queue.create('quiet', '{"keep_history": false}');
SELECT queue.push('quiet') AS id \gset
SELECT token FROM queue.claim('1 minute', 'quiet') \gset
SELECT queue.complete(:id, :token);
SELECT count(*) FROM queue.all_tasks WHERE id = :id;

-- A queue whose history has no payloads, by each way to complete a task, and cancelled.
SELECT queue.create('lean', '{"keep_payloads": false}');
SELECT queue.push_many('lean', ARRAY['1', '2', '3', '4', 'null', '6']::jsonb[], keys => ARRAY[NULL, NULL, NULL, 'key', NULL, NULL]);
SELECT queue.complete(id, token, '"done"') FROM queue.claim('1 minute', 'lean') ORDER BY id;
SELECT queue.complete_many(array_agg(id), array_agg(token)) IS NOT NULL AS done FROM queue.claim('1 minute', 'lean', 2);
SELECT queue.complete_many(array_agg(id), array_agg(token)) IS NOT NULL AS done FROM queue.claim('1 minute', 'lean', 2);
SELECT queue.cancel(id) FROM queue.tasks WHERE queue = 'lean';
SELECT state, payload, result, key FROM queue.history WHERE queue = 'lean' ORDER BY id;
SELECT pg_temp.refused(format('SELECT queue.run_again(%s)', min(id))) FROM queue.history WHERE queue = 'lean';
SELECT queue.push('lean', '"dead"') AS id \gset
SELECT queue.fail(id, token, 'broken', permanent => true) FROM queue.claim('1 minute', 'lean');
SELECT payload FROM queue.get(:id);

-- complete_and_claim claims as many as asked for, also from several queues.
SELECT queue.create('first');
SELECT queue.create('second');
SELECT count(queue.push(q, to_jsonb(q || n))) FROM unnest('{first,second}'::text[]) AS q, generate_series(1, 4) AS n;
SELECT id, token FROM queue.claim('1 minute', 'first') \gset
SELECT payload FROM queue.complete_and_claim(:id, :token, '1', '1 minute', 'first', 'w', max_tasks => 2);
SELECT payload, worker FROM queue.tasks WHERE queue = 'first' AND state = 'running' ORDER BY id;
SELECT id, token FROM queue.tasks WHERE payload = '"first2"' \gset
SELECT payload FROM queue.complete_and_claim(:id, :token, NULL, NULL, ARRAY['first', 'second'], max_tasks => 3);
SELECT left(pg_temp.refused(format('SELECT queue.complete_and_claim(%s, %s, NULL, NULL, ARRAY[''first''])', :id, :token)), 5) AS refused;
-- If the claim is refused, the task is not completed.
SELECT id, token FROM queue.tasks WHERE payload = '"first3"' \gset
SELECT left(pg_temp.refused(format('SELECT queue.complete_and_claim(%s, %s, max_tasks => 0)', :id, :token)), 5) AS refused;
SELECT left(pg_temp.refused(format('SELECT queue.complete_and_claim(%s, %s, NULL, NULL, ARRAY[''nowhere''])', :id, :token)), 5) AS refused;
SELECT state FROM queue.tasks WHERE id = :id;

-- Many at once, and the next ones in the same call. Those with a stale token are left out.
SELECT queue.create('pool');
SELECT count(queue.push('pool', to_jsonb(n))) FROM generate_series(1, 6) AS n;
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens FROM queue.claim('1 minute', 'pool', 3) \gset
SELECT queue.end_lease((:'ids'::bigint[])[2]);
SELECT payload FROM queue.complete_many_and_claim(:'ids', :'tokens', ARRAY['"r1"', '"r2"', '"r3"']::jsonb[], '1 minute', 'pool', 2, 'w');
SELECT payload, state, worker, result FROM queue.all_tasks WHERE queue = 'pool' ORDER BY id;
SELECT payload FROM queue.complete_many_and_claim('{}', '{}', queue => 'pool');
-- If the claim is refused, no task is completed.
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.tasks WHERE queue = 'pool' AND state = 'running' \gset
SELECT left(pg_temp.refused(format('SELECT queue.complete_many_and_claim(%L, %L, queue => %L)', :'ids', :'tokens', 'nowhere')), 5) AS refused;
SELECT count(*) FROM queue.tasks WHERE queue = 'pool' AND state = 'running';

-- A trigger of the user that keeps a task prevents its end, also among others. Nothing is written.
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN CASE WHEN OLD.payload = ''"keep"'' THEN NULL ELSE OLD END; END';
CREATE TRIGGER keep BEFORE DELETE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION keep();
SELECT queue.create('keeping');
SELECT queue.push('keeping', '"keep"') AS id, queue.push('keeping', '"keep"', key => 'k') AS keyed, queue.push('keeping', '"no"') AS other \gset
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens FROM queue.claim('1 minute', 'keeping', 3) \gset
SELECT pg_temp.refused(format('SELECT queue.complete(id, token) FROM queue.tasks WHERE id = %s', :id));
SELECT pg_temp.refused(format('SELECT queue.complete(id, token) FROM queue.tasks WHERE id = %s', :keyed));
SELECT pg_temp.refused(format('SELECT queue.complete_many(%L, %L)', :'ids', :'tokens'));
SELECT pg_temp.refused(format('SELECT queue.complete_many((%L::bigint[])[1:1], %L)', :'ids', (:'tokens'::bigint[])[1:1]));
SELECT pg_temp.refused(format('SELECT queue.cancel(%s)', :id));
SELECT pg_temp.refused(format('SELECT queue.fail(id, token, %L, permanent => true) FROM queue.tasks WHERE id = %s', 'x', :id));
SELECT pg_temp.refused($$SELECT queue.purge('keeping')$$);
SELECT pg_temp.refused($$SELECT queue.drop('keeping', force => true)$$);
SELECT payload, state FROM queue.all_tasks WHERE queue = 'keeping' ORDER BY id;
SELECT count(*) FROM queue.release_many((:'ids'::bigint[])[2:], (:'tokens'::bigint[])[2:]);
SELECT queue.purge('keeping');
SELECT pg_temp.refused(format('SELECT queue.cancel(%s)', :keyed));
SELECT payload, state FROM queue.all_tasks WHERE queue = 'keeping' ORDER BY id;
DROP FUNCTION keep CASCADE;
-- One that runs after the deletion finds the task where it has gone.
CREATE TABLE found (payload jsonb, state text);
GRANT ALL ON found TO PUBLIC;
CREATE FUNCTION find() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO public.found SELECT OLD.payload, state FROM queue.all_tasks WHERE id = OLD.id; RETURN NULL; END';
CREATE TRIGGER find AFTER DELETE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION find();
SELECT queue.push('keeping', '"plain"') IS NOT NULL, queue.push('keeping', '"keyed"', key => 'k2') IS NOT NULL, queue.push('keeping', '"dead"') IS NOT NULL;
SELECT CASE WHEN payload = '"dead"' THEN queue.fail(id, token, 'no', permanent => true) IS NOT NULL ELSE queue.complete(id, token) IS NOT NULL END
FROM queue.claim('1 minute', 'keeping', 5) WHERE payload <> '"keep"' ORDER BY id;
SELECT * FROM found ORDER BY payload;
DROP FUNCTION find CASCADE;
DROP TABLE found;
-- A dead letter that a trigger keeps stays one.
CREATE FUNCTION keep_dead() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE DELETE ON queue.dead_letters FOR EACH ROW EXECUTE FUNCTION keep_dead();
SELECT id FROM queue.dead_letters WHERE queue = 'keeping' \gset
SELECT pg_temp.refused(format('SELECT queue.retry(%s)', :id));
SELECT pg_temp.refused($$SELECT queue.redrive('keeping')$$);
SELECT queue.purge('keeping');
CALL queue.purge_where('{"queue": "keeping", "state": "failed"}');
SELECT pg_temp.refused($$SELECT queue.drop('keeping', force => true)$$);
SELECT id = :id AS same, state FROM queue.all_tasks WHERE queue = 'keeping' AND payload = '"dead"';
DROP FUNCTION keep_dead CASCADE;
