-- The end of a round of queue.maintain(), without notifications: they are off unless the cluster was configured to
-- have them.

CREATE FUNCTION queue_internal.end_upkeep() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue_internal.upkeep SET last_run_at = clock_timestamp();
END
$$;
COMMENT ON FUNCTION queue_internal.end_upkeep IS 'Notes when queue.maintain() ended.';
