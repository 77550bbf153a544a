-- CALL queue.maintain()
--
--   The procedure of all editions moves into queue_internal. This one calls it, then notifies the listening sessions
--   once for each queue with tasks to claim, and records the time for queue.health().

ALTER PROCEDURE queue.maintain() SET SCHEMA queue_internal;

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
BEGIN
    CALL queue_internal.maintain();
    COMMIT AND CHAIN;
    PERFORM queue_internal.end_maintenance();
END
$$;
COMMENT ON PROCEDURE queue.maintain IS
'Does one round of maintenance: requeues tasks whose lease has expired, ends tasks that were not claimed by their
start deadline, runs the schedules that are due, unblocks tasks that waited for a predecessor or their turn, creates and drops
partitions of the history, deletes old dead letters, keys, steps and events, and notifies listeners. Call it once a
minute, from pg_cron or another scheduler. Only the owner of queue_ext can call it, because it creates and drops tables.

Errors: 2D000: it was called in a transaction block. A part that fails raises a WARNING, and the others still run.';
