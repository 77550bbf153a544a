-- queue.step
--
--   Promise:  the first value that is stored under a name stays, whichever attempt stores it
--   Waits:    for a transaction that is working on the task
--   Touches:  queue_internal.steps (inserts), queue.tasks (locks, as queue.assert_lease)

CREATE FUNCTION queue.step(id bigint, token bigint, name text, value jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    earlier record;
BEGIN
    PERFORM queue_internal.check_step('name', name);
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null('value');
    END IF;
    PERFORM queue.assert_lease(id, token);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'step', name) AS s;
    IF earlier.stored THEN
        RETURN earlier.value;
    END IF;
    PERFORM queue_internal.store_step(id, 'step', name, value);
    RETURN value;
END
$$;
COMMENT ON FUNCTION queue.step IS
'Stores the result of a step of a running task, and returns what is stored under that name. The first value stays: a later
call, also of a later attempt, changes nothing and returns it. Call it in the transaction that makes the changes of the
step: then these are made exactly once. The lease stays current until the transaction ends, as with queue.assert_lease.
Steps are kept as long as the task: while it is live, a dead letter or in the history. Needs the worker''s right on the
queue.

- id, token: the task and the token of its lease, as claim returned them.
- name: the name of the step in this task, 1 to 512 bytes.
- value: any JSON value. Pass the JSON null for a step without a result.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
