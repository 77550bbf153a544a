-- This edition does not partition the history by day, because on YugabyteDB a change of the schema concerns all nodes
-- and is not transactional. queue.history_default has all rows, distributed by id.

CREATE FUNCTION queue_internal.extend_history() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.close_types();
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.extend_history IS 'Returns true: this edition has no partitions to create.';

CREATE FUNCTION queue_internal.history_partitions(OUT day date, OUT name text, OUT attached boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.history_partitions IS 'Returns no rows: this edition has no partitions for days.';
