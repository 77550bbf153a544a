-- queue.run_again
--
--   Waits:    as queue.push, for a transaction that is pushing the same key
--   Touches:  queue.history, queue.dead_letters (reads), queue.tasks (inserts)

CREATE FUNCTION queue.run_again(id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended queue.all_tasks;
    own   record;
BEGIN
    PERFORM queue_internal.check_id(id);
    SELECT a.* INTO ended FROM queue.all_tasks AS a
    WHERE a.id = run_again.id AND queue_internal.has_right('operator', a.queue);
    IF ended.finished_at IS NULL THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'has not ended', 'Only tasks that completed, failed or were cancelled can be run again.');
    END IF;
    IF ended.payload IS NULL THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'cannot be run again, because its payload was not kept',
            'Push a new task with the payload. With the option keep_payloads, the queue keeps those of tasks that end later.');
    END IF;
    SELECT d.backoff, d.key_ttl INTO own FROM queue.dead_letters AS d WHERE d.id = run_again.id;
    RETURN queue.push(
        queue => ended.queue, payload => ended.payload, priority => ended.priority, key => ended.key,
        on_duplicate => CASE WHEN ended.key IS NULL THEN 'skip' ELSE 'error' END, group_key => ended.group_key,
        max_attempts => ended.max_attempts, headers => ended.headers, kind => ended.kind,
        lease => queue_internal.checked_lease(NULL, ended.lease), timeout => ended.timeout, 
        weight => queue_internal.possible_weight(ended.queue, ended.group_key, ended.weight), backoff => own.backoff,
        key_ttl => CASE WHEN extract(epoch FROM own.key_ttl) < 0 THEN - own.key_ttl ELSE own.key_ttl END,
        key_ttl_from => CASE WHEN extract(epoch FROM own.key_ttl) < 0 THEN 'push' END);
END
$$;
COMMENT ON FUNCTION queue.run_again IS
'Pushes a new task like one that completed, failed or was cancelled, and returns the id of the new task. It has the same
queue, payload, kind, headers, priority, key, group key, max_attempts, lease, timeout and weight, those of a dead letter
also its backoff and key_ttl, and is due at once. The task that ended stays in the history or among the dead letters;
queue.retry puts a dead letter itself back. If a limit of the queue is now smaller than the weight, the task uses up the
whole limit. Needs the operator''s right on the queue.

- id: the task that ended.

Errors: QX002: its queue was dropped. QX003: the task does not exist, or the caller has no right on its queue. QX004: its
key is taken, perhaps still by itself for its key_ttl. QX005: it has not ended, or its queue has not
kept its payload. 22004 or 22023: the argument is null or invalid.';
