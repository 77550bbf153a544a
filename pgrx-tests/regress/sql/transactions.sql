\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Procedures that wait or work in batches, where they cannot commit. The SQL-only edition raises an error instead.
SET client_min_messages = notice;
SELECT queue.create('mail');

-- In a transaction block wait returns at once, with a NOTICE if it would have waited. It sees the transaction's own tasks.
BEGIN;
CALL queue.wait(timeout => '1 hour');
ROLLBACK;
BEGIN;
CALL queue.wait(timeout => '0');
SELECT queue.push('default') AS id \gset
CALL queue.wait(timeout => '1 hour');
COMMIT;
SELECT queue.complete(id, token) FROM queue.claim();
-- A procedure that catches errors cannot commit.
CREATE PROCEDURE pg_temp.careful_wait() LANGUAGE plpgsql AS $$
DECLARE
    ready boolean;
BEGIN
    CALL queue.wait('default', '1 hour', ready);
    RAISE NOTICE '%', ready;
EXCEPTION WHEN division_by_zero THEN
    NULL;
END
$$;
CALL pg_temp.careful_wait();

SELECT queue.push('default') AS id \gset
SELECT token FROM queue.claim('1 minute') \gset
-- The same for wait_result.
BEGIN;
CALL queue.wait_result(:id, '1 hour');
ROLLBACK;
BEGIN;
CALL queue.wait_result(:id, '0');
SELECT queue.complete(:id, :token, '"done"');
CALL queue.wait_result(:id, '1 hour');
COMMIT;
CREATE PROCEDURE pg_temp.careful_ask() LANGUAGE plpgsql AS $$
DECLARE
    task   bigint := queue.push('default');
    state  text;
    result jsonb;
BEGIN
    CALL queue.wait_result(task, '1 hour', state, result);
    RAISE NOTICE '%', state;
EXCEPTION WHEN division_by_zero THEN
    NULL;
END
$$;
CALL pg_temp.careful_ask();

-- A bulk procedure called by another procedure commits after each full batch. The rest is rolled back with the caller's
-- own work. In the SQL-only edition all of it is rolled back.
SELECT count(queue.push('mail')) FROM generate_series(1, 5);
CREATE PROCEDURE pg_temp.tidy_up() LANGUAGE plpgsql AS $$
DECLARE
    cancelled bigint;
BEGIN
    CALL queue.cancel_where('{"queue": "mail"}', tasks => cancelled, batch_size => 2);
    RAISE WARNING '% cancelled', cancelled;
    ROLLBACK;
END
$$;
CALL pg_temp.tidy_up();
SELECT count(*) FROM queue.tasks WHERE queue = 'mail';
