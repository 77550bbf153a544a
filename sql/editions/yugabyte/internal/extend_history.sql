-- The history without partitions by day: making them is a change of the schema, which every node has to learn of
-- and which no transaction holds together with anything. queue.history_default has all of it, spread by id.

CREATE FUNCTION queue_internal.extend_history() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.extend_history IS 'There are no partitions to make.';

CREATE FUNCTION queue_internal.history_partitions(OUT day date, OUT name text, OUT attached boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.history_partitions IS 'There are no partitions for days.';
