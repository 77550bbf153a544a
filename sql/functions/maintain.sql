-- CALL queue.maintain()
--
--   One round of what the background worker does, for servers that do not preload the library:
--   puts back tasks whose lease ran out, runs the schedules that are due, lets go on what waits for a
--   predecessor or its turn, makes and drops the partitions of the history, deletes old dead letters and
--   keys. Call it every minute, from pg_cron or any other scheduler.
--   API:      public; the extension owner's, since it makes and drops tables
--   Locks:    short transactions of up to 1000 tasks each; it cannot be called in a transaction
--   Why it has no SET clause: a procedure that commits may have none.

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
BEGIN
    -- Signals are settled at this level alone, whatever the default is. Each transaction hands it to the next.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    WHILE (queue_internal.reap(1000)).reaped OPERATOR(pg_catalog.=) 1000 LOOP
        COMMIT AND CHAIN;
    END LOOP;
    COMMIT AND CHAIN;
    WHILE queue.run_schedules() OPERATOR(pg_catalog.>) 0 LOOP
        COMMIT AND CHAIN;
    END LOOP;
    COMMIT AND CHAIN;
    WHILE queue_internal.settle_all(1000) OPERATOR(pg_catalog.>) 0 LOOP
        COMMIT AND CHAIN;
    END LOOP;
    COMMIT AND CHAIN;
    PERFORM queue_internal.extend_history();
    COMMIT AND CHAIN;
    WHILE queue_internal.retire_history(1000) LOOP
        COMMIT AND CHAIN;
    END LOOP;
    COMMIT AND CHAIN;
    WHILE queue_internal.retire_dead_letters(1000) LOOP
        COMMIT AND CHAIN;
    END LOOP;
    COMMIT AND CHAIN;
    WHILE queue_internal.retire_keys(1000) LOOP
        COMMIT AND CHAIN;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.maintain() IS
    'One round of what the background worker does, for servers that do not preload the library.';
