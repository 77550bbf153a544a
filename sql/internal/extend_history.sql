-- queue_internal.extend_history()
--
--   Creates the partitions of queue.history for today and the next "queue.history_ahead" days. Returns whether all of
--   them exist; null as long as there was no task. A day that is partly covered by a partition made by hand gets none:
--   the other rows of that day go to queue.history_default.
--
--   It does not delay claims: one session at a time does it, each partition is attached under a short lock_timeout, and
--   what could not be done is left for the next time. Until then queue.history_default takes the rows.
--   Why not before the first task: a restore creates the extension, then the partitions of the dump, then loads the
--   tasks. Partitions created in between would conflict with those of the dump. So would any that is created while a
--   partition of the dump for today or a later day is not yet attached. pg_restore -j may load the tasks first.

CREATE FUNCTION queue_internal.extend_history() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today    date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    ahead    integer := queue_internal.setting('history_ahead', '3')::integer;
    complete boolean := true;
    day      date;
    warned   boolean := false;
BEGIN
    -- Only roles that may write to the table can hold this lock, unlike an advisory lock. Any role can take it for an
    -- instant, so it is waited for.
    LOCK TABLE queue.history_default IN SHARE UPDATE EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM queue_internal.history_partitions() AS p WHERE NOT p.attached AND p.day >= today)
       OR queue_internal.is_being_restored() THEN
        RETURN false;
    END IF;
    PERFORM queue_internal.close_types();
    IF NOT EXISTS (SELECT FROM queue_internal.history_partitions() AS p WHERE p.attached)
       AND NOT EXISTS (SELECT FROM queue.tasks)
       AND NOT EXISTS (SELECT FROM queue.history_default) THEN
        RETURN NULL;
    END IF;
    FOR day IN
        SELECT today + n FROM generate_series(0, ahead) AS n
        EXCEPT SELECT p.day FROM queue_internal.history_partitions() AS p
        EXCEPT SELECT today + n FROM generate_series(0, ahead) AS n, queue_internal.history_bounds() AS b
               WHERE b.since < (today + n + 1)::timestamp AT TIME ZONE 'UTC'
                 AND b.until > (today + n)::timestamp AT TIME ZONE 'UTC'
        ORDER BY 1
    LOOP
        BEGIN
            IF NOT queue_internal.add_history_partition(day) THEN
                complete := false;
            END IF;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                complete := false;
            WHEN OTHERS THEN
                -- The failure of one day must not prevent the others.
                complete := false;
                IF NOT warned THEN
                    RAISE WARNING 'the partition of queue.history for % cannot be created: %', day, SQLERRM;
                    warned := true;
                END IF;
        END;
    END LOOP;
    RETURN complete;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.extend_history IS
    'Creates the partitions of queue.history for the coming days; returns whether all exist.';

CREATE FUNCTION queue_internal.history_partitions(OUT day date, OUT name text, OUT attached boolean)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD'), c.relname::text, c.relispartition
    FROM pg_class AS c
    WHERE c.relnamespace = 'queue'::regnamespace
      AND c.relkind = 'r'
      AND c.relname ~ '^history_[0-9]{8}$';
END;
COMMENT ON FUNCTION queue_internal.history_partitions IS
    'Returns the partitions of queue.history that hold one day (UTC) each.';

-- The bounds of each partition of queue.history except the default one.
CREATE FUNCTION queue_internal.history_bounds(OUT name text, OUT since timestamptz, OUT until timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    RETURN QUERY
    SELECT c.relname::text, coalesce(nullif(btrim(b[1], ''''), 'MINVALUE'), '-infinity')::timestamptz,
           coalesce(nullif(btrim(b[2], ''''), 'MAXVALUE'), 'infinity')::timestamptz
    FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
         LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(](.*)[)] TO [(](.*)[)]') AS b
    WHERE i.inhparent = 'queue.history'::regclass AND b IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.history_bounds IS 'Returns the partitions of queue.history and their bounds.';

-- Moves rows of today that were written before the partition existed, if they are few. Many stay in
-- queue.history_default until retire_history deletes them there. Why today's partition needs a lock on the whole
-- history: a completion that has been routed to the default partition would fail when this one appears.
CREATE FUNCTION queue_internal.add_history_partition(day date) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name  text := 'history_' || to_char(day, 'YYYYMMDD');
    since timestamptz := day::timestamp AT TIME ZONE 'UTC';
    until timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    early bigint;
BEGIN
    IF since <= clock_timestamp() + interval '1 minute' THEN
        LOCK TABLE queue.history IN ACCESS EXCLUSIVE MODE;
    END IF;
    SELECT count(*) INTO early FROM (
        SELECT FROM queue.history_default AS h
        WHERE h.finished_at >= since AND h.finished_at < until LIMIT 10001) AS rows;
    IF early > 10000 THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE queue.%I (LIKE queue.history_default INCLUDING ALL)', name);
    -- A superuser may CALL queue.maintain().
    EXECUTE format('ALTER TABLE queue.%I OWNER TO %s', name,
                   (SELECT c.relowner::regrole FROM pg_class AS c WHERE c.oid = 'queue.history'::regclass));
    -- Default privileges may give roles access to it. The policies of queue.history decide which rows a role may
    -- read.
    EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('REVOKE ALL ON TYPE queue.%I FROM PUBLIC', name);
    IF early > 0 THEN
        EXECUTE format(
            'WITH moved AS ('
            '    DELETE FROM queue.history_default AS h'
            '    WHERE h.finished_at >= $1 AND h.finished_at < $2 RETURNING h.*)'
            'INSERT INTO queue.%I SELECT * FROM moved', name) USING since, until;
    END IF;
    EXECUTE format('ALTER TABLE queue.history ATTACH PARTITION queue.%I FOR VALUES FROM (%L) TO (%L)',
                   name, since, until);
    EXECUTE format('COMMENT ON TABLE queue.%I IS %L', name, format('The history of %s (UTC).', day));
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.add_history_partition IS
    'Creates the partition of queue.history for one day; false if too many rows came before it.';
