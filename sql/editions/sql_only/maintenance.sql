-- CALL queue.maintain()
--
--   The procedure of all editions moves into queue_internal. This one adds what a dump has left out, calls it, then notifies the listening
--   sessions once for each queue with tasks to claim, records the time for queue.health(), and counts the tasks if there are
--   many.

ALTER PROCEDURE queue.maintain() SET SCHEMA queue_internal;

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM queue_internal.add_missing_rows();
    COMMIT AND CHAIN;
    PERFORM queue_internal.restore_privileges();
    COMMIT AND CHAIN;
    CALL queue_internal.maintain();
    COMMIT AND CHAIN;
    PERFORM queue_internal.end_maintenance();
    COMMIT AND CHAIN;
    PERFORM queue_internal.count_all();
END
$$;
COMMENT ON PROCEDURE queue.maintain IS
'Does one round of maintenance: requeues tasks whose lease has expired, ends tasks that were not claimed by their
start deadline, runs the schedules that are due, unblocks tasks that waited for a predecessor or their turn, creates and drops
partitions of the history, deletes old dead letters, keys, steps and events, notifies listeners, and counts the tasks for
queue.stats and queue.workers if there are many. Call it once a minute, from pg_cron or another scheduler. Only the owner of
queue_ext can call it, because it creates and drops tables.

Errors: 2D000: it was called in a transaction block. A part that fails raises a WARNING, and the others still run.';

-- Counts the tasks for counted() and running_tasks(), if reading them all would take a view too long. Spends at most a
-- twentieth of the time on it, or a fifth while there are queues that it has not counted.
CREATE FUNCTION queue_internal.count_all() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' SET jit = off AS $$
DECLARE
    begun CONSTANT timestamptz := clock_timestamp();
    last  queue_internal.maintenance;
BEGIN
    SELECT m.* INTO last FROM queue_internal.maintenance AS m;
    IF pg_relation_size('queue.tasks') + pg_relation_size('queue.dead_letters') <= 256 * 1024 * 1024 THEN
        IF last.counted_at IS NOT NULL THEN
            DELETE FROM queue_internal.counts;
            DELETE FROM queue_internal.counted_running;
            UPDATE queue_internal.maintenance SET counted_at = NULL, counting = NULL;
        END IF;
        RETURN;
    ELSIF begun BETWEEN last.counted_at AND last.counted_at
              + last.counting * (CASE queue_internal.not_counted() WHEN '{}' THEN 20 ELSE 5 END)
          -- A role that sees only some queues would store an incomplete count.
          OR queue_internal.queues_with_right('monitor') IS NOT NULL THEN
        RETURN;
    END IF;
    DELETE FROM queue_internal.counts;
    DELETE FROM queue_internal.counted_running;
    -- The queues first: each of these reads with a later snapshot, and so no tasks of an earlier queue of that name.
    INSERT INTO queue_internal.counts
    SELECT c.*, q.created_at
    FROM queue_internal.count_tables(ARRAY(SELECT q.name FROM queue.queues AS q)) AS c
    JOIN queue.queues AS q ON q.name = c.queue;
    INSERT INTO queue_internal.counted_running
    SELECT t.worker, t.queue, t.claimed_at, t.lease_until FROM queue.tasks AS t WHERE t.state = 'running';
    UPDATE queue_internal.maintenance SET counted_at = begun, counting = clock_timestamp() - begun;
EXCEPTION
    -- Another session is counting.
    WHEN lock_not_available OR unique_violation THEN
        NULL;
    WHEN OTHERS THEN
        RAISE WARNING 'queue.maintain() could not count the tasks: %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_internal.count_all IS 'Counts the tasks for queue.stats and queue.workers, if there are many.';
