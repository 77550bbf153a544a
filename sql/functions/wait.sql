-- CALL queue.wait(queue, timeout, ready)
--
--   Waits until there is something to claim from the queue, or until "timeout" is over. One new task wakes
--   one waiter, the one who has waited longest; another worker may still be quicker, and then queue.claim()
--   returns nothing.
--   API:      public; needs the worker's right on the queue
--   Returns:  in "ready", whether there is something to claim
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
--   Touches:  queue.queues, queue.tasks (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps
--             (src/wait.rs). In a transaction block it cannot, and does not wait.

CREATE PROCEDURE queue.wait(
    queue       text     DEFAULT 'default',
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait';
COMMENT ON PROCEDURE queue.wait(text, interval, boolean) IS
    'Waits until there is something to claim, holding neither a transaction nor a snapshot.';

-- The same for several queues: until there is something in any of them.
CREATE PROCEDURE queue.wait(
    queues      text[],
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_any';
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean) IS
    'Waits until there is something to claim from any of the queues.';
