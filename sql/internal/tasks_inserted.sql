-- The trigger behind every way into queue.tasks: push, a plain INSERT, COPY.
--
--   Refuses tasks of unknown queues, and announces the rest to the worker.
--   Why a statement trigger: one look at the queues for a million rows.
--   Why it reads the queues again after push did: the lock that drop takes comes in between.

CREATE FUNCTION queue_internal.tasks_inserted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arrival record;
BEGIN
    FOR arrival IN
        SELECT i.queue, min(i.run_at) AS run_at FROM inserted AS i GROUP BY i.queue
    LOOP
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = arrival.queue) THEN
            PERFORM queue_internal.raise_unknown_queue(arrival.queue);
        END IF;
        PERFORM queue_internal.announce_task(arrival.queue, arrival.run_at);
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.tasks_inserted() IS
    'Refuses tasks of unknown queues and announces the others to the worker.';

CREATE TRIGGER tasks_inserted AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_inserted();
COMMENT ON TRIGGER tasks_inserted ON queue.tasks IS
    'Makes a plain INSERT or COPY as good as a push.';
