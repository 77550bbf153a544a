-- The end of a round of queue.maintain(): maintenance.sql.

CREATE FUNCTION queue_internal.end_maintenance() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    BEGIN
        PERFORM pg_notify(queue.channel(r.name), '')
        FROM unnest((queue_internal.due_queues('-infinity', clock_timestamp())).ready) AS r (name);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'queue.maintain() could not notify: %', SQLERRM;
    END;
    UPDATE queue_internal.maintenance SET last_run_at = clock_timestamp();
END
$$;
COMMENT ON FUNCTION queue_internal.end_maintenance IS
    'Notifies the listeners of queues with tasks to claim, and records when queue.maintain() ended.';
