-- queue.complete_and_claim: a worker's loop needs one transaction for each task instead of two.

CREATE FUNCTION queue.complete_and_claim(
    id     bigint,
    token  bigint,
    result jsonb    DEFAULT NULL,
    lease  interval DEFAULT NULL,
    queue  text     DEFAULT 'default',
    worker text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue.complete(id, token, result);
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, 1, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim IS
'Completes a task and claims the next one in the same transaction: both or neither. Returns no rows if there is no next
task. Needs the worker''s right on both queues.

- id, token, result: as in queue.complete.
- lease, queue, worker: as in queue.claim, for the next task.

Errors: as queue.complete and queue.claim.';
