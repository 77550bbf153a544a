\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SET client_min_messages = notice;
-- Returns at once if the task is finished.
SELECT queue.push('default', '"work"') AS id \gset
SELECT queue.complete(id, token, '{"sum": 42}') FROM queue.claim();
CALL queue.wait_result(:id);
SELECT queue.push('default') AS id \gset
SELECT queue.cancel(:id);
CALL queue.wait_result(:id);
SELECT queue.push('default') AS id \gset
SELECT queue.fail(id, token, 'broken', permanent => true) FROM queue.claim();
CALL queue.wait_result(:id);
-- Returns at the timeout if it is not.
SELECT queue.push('default') AS id \gset
CALL queue.wait_result(:id, '0');
CALL queue.wait_result(:id, '20 ms');
SELECT token FROM queue.claim('1 minute') \gset
CALL queue.wait_result(:id, '20 ms');
-- Values of the INOUT arguments are not returned as a result.
CALL queue.wait_result(:id, '0', 'completed', '1');

-- A procedure can wait for what it pushed, once it has committed.
CREATE PROCEDURE pg_temp.ask() LANGUAGE plpgsql AS $$
DECLARE
    task   bigint := queue.push('default');
    state  text;
    result jsonb;
BEGIN
    COMMIT;
    CALL queue.wait_result(task, '20 ms', state, result);
    RAISE NOTICE '%', state;
END
$$;
CALL pg_temp.ask();

-- A queue that keeps no history leaves no trace.
SELECT queue.create('brief', '{"keep_history": false}');
SELECT queue.push('brief') AS id \gset
SELECT queue.complete(id, token) FROM queue.claim(queue => 'brief');
SELECT pg_temp.refused(format('CALL queue.wait_result(%s)', :id));
