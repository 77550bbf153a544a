-- queue.complete_and_claim: a worker's loop needs one transaction for each task instead of two.

CREATE FUNCTION queue.complete_and_claim(
    id        bigint,
    token     bigint,
    result    jsonb    DEFAULT NULL,
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    worker    text     DEFAULT NULL,
    max_tasks integer  DEFAULT 1)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue.complete(id, token, result);
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text, integer) IS
'Completes a task and claims the next one in the same transaction: both or neither. Returns no rows if there is no next
task. Needs the worker''s right on both queues.

- id, token, result: as in queue.complete.
- lease, queue, worker, max_tasks: as in queue.claim, for the next tasks. Default of max_tasks: 1.

Errors: as queue.complete and queue.claim.';

-- The same for several queues.
CREATE FUNCTION queue.complete_and_claim(
    id        bigint,
    token     bigint,
    result    jsonb,
    lease     interval,
    queues    text[],
    worker    text     DEFAULT NULL,
    max_tasks integer  DEFAULT 1)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue.complete(id, token, result);
    RETURN QUERY SELECT * FROM queue.claim(lease, queues, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text[], text, integer) IS
'Completes a task and claims the next one from several queues, in the order given, in the same transaction: both or
neither. Needs the worker''s right on the queue of the task and on each of the queues.

- id, token, result: as in queue.complete. Null as result means none.
- lease, queues, worker, max_tasks: as in queue.claim for several queues. Null as lease means each task''s own lease,
  or else the option lease of its queue. Default of max_tasks: 1.

Errors: as queue.complete and queue.claim.';
