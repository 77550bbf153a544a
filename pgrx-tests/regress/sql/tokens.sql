\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- The background worker has not published a token base (src/tokens.rs), so claims commit synchronously.
SELECT reached FROM queue_internal.token_mark;
SELECT queue.push('default') FROM generate_series(1, 8);
SET synchronous_commit = off;
BEGIN;
SHOW synchronous_commit;
SAVEPOINT claimed;
SELECT token FROM queue.claim('1 hour');
SHOW synchronous_commit;
-- Rolling back the claim restores synchronous_commit.
ROLLBACK TO claimed;
SHOW synchronous_commit;
SELECT id, token FROM queue.claim('1 hour');
SHOW synchronous_commit;
COMMIT;
SHOW synchronous_commit;
BEGIN;
SELECT id, token FROM queue.complete_and_claim(1, 1);
SHOW synchronous_commit;
COMMIT;
SET synchronous_commit = local;
BEGIN; SELECT id, token FROM queue.claim('1 hour'); SHOW synchronous_commit; COMMIT;
SET synchronous_commit = remote_write;
BEGIN; SELECT id, token FROM queue.claim('1 hour'); SHOW synchronous_commit; COMMIT;
-- It is never lowered.
SET synchronous_commit = remote_apply;
BEGIN; SELECT id, token FROM queue.claim('1 hour'); SHOW synchronous_commit; COMMIT;
-- A claim that returns no task leaves synchronous_commit as it is.
SET synchronous_commit = off;
SELECT queue.create('empty');
BEGIN; SELECT id, token FROM queue.claim('1 hour', 'empty'); SHOW synchronous_commit; COMMIT;
RESET synchronous_commit;

-- Tokens are below 2^53. A task with the largest token is not claimed again, and does not block others.
UPDATE queue.tasks SET token = 9007199254740990 WHERE id = 6;
SELECT id, token FROM queue.claim('1 hour');
SELECT queue.release(6, 9007199254740991);
SELECT id, token FROM queue.claim('1 hour', max_tasks => 10);
SELECT id, token, errors -> 0 ->> 'error' AS error FROM queue.dead_letters;
SELECT queue.retry(6);
SELECT id FROM queue.claim('1 hour');
SELECT id, token FROM queue.dead_letters;
-- Integer arguments work as well.
SELECT queue.complete_many(ARRAY[2, 3]::integer[], ARRAY[1, 1]::integer[]);
SELECT queue.complete(4::integer, 1::integer);
