-- queue.attach
--
--   Touches:  queue.queues (locks the row, so that a concurrent drop comes before or after), queue.handlers (inserts or
--             updates)

CREATE FUNCTION queue.attach(queue text, handler regprocedure, role regrole, workers integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failing record;
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF handler IS NULL THEN
        PERFORM queue_internal.raise_null('handler');
    ELSIF role IS NULL THEN
        PERFORM queue_internal.raise_null('role');
    ELSIF workers IS NULL THEN
        PERFORM queue_internal.raise_null('workers');
    ELSIF workers < 1 THEN
        PERFORM queue_internal.raise_invalid('workers', 'must be greater than zero', workers::text);
    ELSIF workers > 64 THEN
        PERFORM queue_internal.raise_too_large('workers', '64', workers::text);
    ELSIF queue_internal.is_handler(handler) IS NOT TRUE THEN
        PERFORM queue_internal.raise_invalid(
            'handler', 'must be a function that takes one queue.claimed_task and returns jsonb', handler::text);
    END IF;
    PERFORM queue_internal.hold_queue(queue);
    INSERT INTO queue.handlers AS h (queue, handler, role, workers)
    VALUES (attach.queue, queue_internal.handler_name(attach.handler), attach.role, attach.workers)
    ON CONFLICT ON CONSTRAINT handlers_pkey DO UPDATE
    SET handler = excluded.handler, role = excluded.role, workers = excluded.workers, created_at = excluded.created_at;
    SELECT f.problem, f.hint INTO failing FROM queue.failing_handlers AS f WHERE f.queue = attach.queue;
    IF FOUND THEN
        RAISE EXCEPTION 'handler cannot be attached to queue "%"', queue
            USING ERRCODE = 'insufficient_privilege', DETAIL = format('The reason is: %s.', failing.problem),
                  HINT = failing.hint;
    END IF;
END
$$;
COMMENT ON FUNCTION queue.attach IS
'Attaches a handler to a queue: processes of the extension claim the tasks of the queue, call the function for each, and
complete it with what the function returns. The changes that the function makes in this database and the completion
commit together. An error in the function is a failed attempt. A queue has one handler: attaching another one replaces
it, and the former handler finishes the tasks that it runs. Only the owner of the extension can call it. Needs the
library in shared_preload_libraries.

- queue: name of the queue.
- handler: a function that takes one queue.claimed_task and returns jsonb, the result of the task or null. Written with
  its argument type, as in ''pay(queue.claimed_task)''.
- role: the role that claims the tasks and calls the function. It needs LOGIN, the worker''s right on the queue, CONNECT
  on the database and EXECUTE on the function.
- workers: how many tasks are handled at the same time, each by a process of its own, 1 to 64. The processes count
  against max_worker_processes. Default 1.

Errors: 42501: the caller is not the owner of the extension, or the role lacks a privilege. QX002: the queue does not
exist. 0A000: the SQL-only edition has no processes. 22004, 22023 or 54000: an argument is null, invalid or too large.';
