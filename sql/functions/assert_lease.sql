-- queue.assert_lease
--
--   Promise:  nobody else gets the task before the transaction ends, also if the lease expires meanwhile
--   Waits:    for a transaction that is working on the task
--   Touches:  queue.tasks (locks). With the lock of an update and not a weaker one, because two transactions that both
--             asserted the lease and then completed the task would deadlock

CREATE FUNCTION queue.assert_lease(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM FROM queue.tasks AS t
    WHERE t.id = assert_lease.id AND t.token = assert_lease.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.assert_lease IS
'Raises an error unless the lease is current, and keeps it current until the transaction ends: the task is not requeued
and not claimed by another worker, also if the lease expires meanwhile. Call it first in each transaction in which a
worker writes and does not complete the task. A lease that has expired is current until another session requeues the
task, as for queue.complete. Other calls for the task, such as a heartbeat from another connection, wait until the
transaction ends. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004 or 22023: an argument is null or invalid.';
