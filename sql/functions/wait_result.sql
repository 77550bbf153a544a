-- CALL queue.wait_result(id, timeout, state, result)
--
--   Waits until the task is completed, cancelled or failed for good, or until "timeout" is over.
--   API:      public; needs to read the task, as queue.get() does
--   Returns:  in "state", the state that the task is in now, null if it is gone without a trace; in
--             "result", what its worker gave to queue.complete()
--   Errors:   QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps until
--             the task's end wakes it (src/wait.rs). In a transaction block it cannot, and does not wait.

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_result';
COMMENT ON PROCEDURE queue.wait_result(bigint, interval, text, jsonb) IS
    'Waits until a task is finished, holding neither a transaction nor a snapshot; tells its state and result.';
