-- The end of a round of queue.maintain(), without notifications, which YugabyteDB has turned off by default.

CREATE FUNCTION queue_internal.end_maintenance() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue_internal.maintenance SET last_run_at = clock_timestamp();
END
$$;
COMMENT ON FUNCTION queue_internal.end_maintenance IS 'Records when queue.maintain() ended.';
