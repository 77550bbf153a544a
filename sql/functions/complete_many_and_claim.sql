-- queue.complete_many_and_claim: a worker that claims several tasks at a time needs one transaction for each round instead
-- of two.

CREATE FUNCTION queue.complete_many_and_claim(
    ids       bigint[],
    tokens    bigint[],
    results   jsonb[]  DEFAULT NULL,
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    max_tasks integer  DEFAULT 1,
    worker    text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM queue.complete_many(ids, tokens, results);
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_many_and_claim IS
'Completes many tasks, as queue.complete_many, and claims the next ones in the same transaction, as queue.claim. A task
whose token is stale, or on whose queue the caller has no worker''s right, is left out and does not affect the others;
call queue.complete_many to learn which ones. Returns the claimed tasks. Needs the worker''s right on the queue.

- ids, tokens, results: as in queue.complete_many. With empty arrays it only claims.
- lease, queue, max_tasks, worker: as in queue.claim, for the next tasks.

Errors: as queue.complete_many and queue.claim.';
