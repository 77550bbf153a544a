-- queue.wait
--
--   Touches:  queue.queues, queue.tasks (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps (src/wait.rs). In a
--             transaction block it cannot do that, and does not wait

CREATE PROCEDURE queue.wait(
    queue       text     DEFAULT 'default',
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL,
    worker      text     DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait';
COMMENT ON PROCEDURE queue.wait(text, interval, boolean, text) IS
'Waits until a task of the queue can be claimed, and sets ready to true; or until the timeout ends, and sets it to
false. It claims nothing: another worker may be quicker, so queue.claim can return no rows afterwards. One new task
wakes one waiting session. It holds no transaction, snapshot or lock. In a transaction block it does not wait but
returns at once, with a NOTICE. Needs the worker''s right on the queue.

- queue: name of the queue. Default "default".
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- ready: the result; pass nothing.
- worker: name of the worker, 1 to 128 bytes, shown in queue.workers while it waits. Null (default) means none.

Errors: 42501: no right on the queue. QX002: the queue does not exist, or was dropped meanwhile. 22004, 22023 or
54000: an argument is null, invalid or too large.';

-- The same for several queues.
CREATE PROCEDURE queue.wait(
    queues      text[],
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL,
    worker      text     DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_any';
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean, text) IS
'Waits until a task of any of the queues can be claimed, or until the timeout ends. Needs the worker''s right on each of
the queues.

- queues: names of the queues, at least one.
- timeout, ready, worker: as for one queue.

Errors: as for one queue.';
