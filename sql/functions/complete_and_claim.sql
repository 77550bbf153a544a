-- queue.complete_and_claim(id, token, result, lease, queue, worker)
--
--   Finishes a task and claims the next one: one transaction for each task of a worker's loop.
--   API:      public; needs the worker's right on both queues
--   Promise:  both or neither; as complete and as claim
--   Empty:    finishes the task and returns no rows
--   Errors:   those of complete and of claim

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
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text) IS
    'Finishes a task and claims the next one in the same transaction.';
