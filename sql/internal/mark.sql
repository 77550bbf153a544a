-- Where claims of a session begin, while much that is of no use lies before that.
--
--   Finished tasks and processed events leave entries at the front of their indexes until a vacuum takes
--   them, and while an old snapshot forbids that, each claim would pass over all of them. So a session whose
--   claim passed over more than a thousand keeps in mind where it found its first task, and begins there for
--   twenty times as long as it took, up to a minute: looks from the front then take a twentieth of its time,
--   however much lies there. What comes before the mark meanwhile, a more urgent task, or an event whose transaction was
--   slow to commit, may be overtaken for that long. No claim has nothing because of its mark: it looks again
--   from the front.
--
--   A setting, because it is the session's own; a transaction that rolls back takes its mark along.

CREATE TYPE queue_internal.mark AS (event bigint, level integer, head timestamptz, until timestamptz);
REVOKE ALL ON TYPE queue_internal.mark FROM PUBLIC;
COMMENT ON TYPE queue_internal.mark IS
    'The event, the priority and the run_at before which claims of a session do not look, and until when.';

CREATE FUNCTION queue_internal.front() RETURNS queue_internal.mark
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ROW(0, -2147483648, '-infinity', NULL)::queue_internal.mark;
COMMENT ON FUNCTION queue_internal.front IS 'The mark of those that have none.';

-- A clock that was put back makes none last longer.
CREATE FUNCTION queue_internal.mark_of(queue text) RETURNS queue_internal.mark
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    kept CONSTANT text := current_setting('queue_mark.q' || md5(queue), true);
    mark queue_internal.mark;
BEGIN
    IF kept <> '' THEN
        mark := kept;
        IF mark.until BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 minute' THEN
            RETURN mark;
        END IF;
    END IF;
    RETURN queue_internal.front();
END
$$;
COMMENT ON FUNCTION queue_internal.mark_of IS 'Where claims of this session from a queue begin.';

-- Up to a minute ahead, or it would not be believed.
CREATE FUNCTION queue_internal.set_mark(queue text, mark queue_internal.mark) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    mark.until := least(mark.until, clock_timestamp() + interval '1 minute');
    PERFORM set_config('queue_mark.q' || md5(queue), mark::text, false);
END
$$;
COMMENT ON FUNCTION queue_internal.set_mark IS 'Has claims of this session from a queue begin there.';
