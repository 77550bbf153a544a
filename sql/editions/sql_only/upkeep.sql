-- CALL queue.maintain()
--
--   All that the core's procedure does, which moves into queue_internal; then it notifies the listening sessions,
--   once for each queue with something to claim, and notes the time for queue.health().

ALTER PROCEDURE queue.maintain() SET SCHEMA queue_internal;

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
BEGIN
    CALL queue_internal.maintain();
    COMMIT AND CHAIN;
    PERFORM queue_internal.end_upkeep();
END
$$;
COMMENT ON PROCEDURE queue.maintain() IS
    'One round of what keeps the queues going. Call it every minute, from pg_cron or any other scheduler.';
