-- queue.wait_result
--
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps until the task's end
--             wakes it (src/wait.rs). In a transaction block it cannot do that, and does not wait

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_result';
COMMENT ON PROCEDURE queue.wait_result IS
'Waits until a task is completed, cancelled or failed, or until the timeout ends. It holds no transaction, snapshot or
lock. In a transaction block it does not wait but returns at once, with a NOTICE. Needs the operator''s right on the
queue.

- id: the task.
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- state: the result; pass nothing. The state of the task. Null if it left no trace, because its queue keeps no history
  or it was purged.
- result: the result; pass nothing. What the worker passed to queue.complete, or null.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: an argument is
null, invalid or too large.';
