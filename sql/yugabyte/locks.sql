-- In the place of what YugabyteDB lacks, or has had only for a short time.

-- Without notifications, which are off unless the cluster was told to have them.
CREATE OR REPLACE FUNCTION queue_internal.end_upkeep() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue_internal.upkeep SET last_run_at = clock_timestamp();
END
$$;
COMMENT ON FUNCTION queue_internal.end_upkeep() IS 'Notes when queue.maintain() ended.';

