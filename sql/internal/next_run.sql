-- queue_internal.next_run(cron, timezone, after)
--
--   Returns the first time after "after" at which a schedule runs; null if there is none.
--   A local time that its zone skips runs when it would have come had the clock not been set forward. A local time that
--   comes twice runs the first time; but an expression for every hour or every nth hour runs both times.
--   How:      within a day of "after" the clock changes at most once. Times before the change are read on the old
--             clock, which is continued through the hours that the new one skips; times after it on the new clock. The
--             earliest of both is the next run.
--   Why UTC readings without a zone: adding a day to them means 24 hours in every session.

CREATE FUNCTION queue_internal.next_run(cron text, timezone text, after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day        CONSTANT interval := '24 hours';
    nothing    CONSTANT interval := '0';
    every_hour CONSTANT boolean := cron ~* '^[[:space:]]*(@hourly|([^[:space:]]+[[:space:]]+){1,2}[*](/[0-9]+)?([[:space:]]+[^[:space:]]+){3})[[:space:]]*$';
    moment    timestamp := date_trunc('second', after AT TIME ZONE 'UTC');
    old_clock interval;
    new_clock interval;
    change    timestamp;
    lower     timestamp;
    middle    timestamp;
    early     timestamp;
    run      timestamp;
BEGIN
    LOOP
        old_clock := (moment - day) AT TIME ZONE 'UTC' AT TIME ZONE timezone - (moment - day);
        new_clock := (moment + day) AT TIME ZONE 'UTC' AT TIME ZONE timezone - (moment + day);
        IF old_clock = new_clock THEN
            run := queue_internal.cron_next(cron, moment + new_clock) - new_clock;
        ELSE
            lower := moment - day;
            change := moment + day;
            WHILE change - lower > '1 second' LOOP
                middle := date_trunc('second', lower + (change - lower) / 2);
                IF middle AT TIME ZONE 'UTC' AT TIME ZONE timezone - middle = old_clock THEN
                    lower := middle;
                ELSE
                    change := middle;
                END IF;
            END LOOP;
            early := queue_internal.cron_next(cron, moment + old_clock) - old_clock;
            -- The repeated hour ends when the new clock reaches the time at which the old one was changed.
            run := change + CASE WHEN every_hour THEN nothing ELSE greatest(old_clock - new_clock, nothing) END;
            run := greatest(moment, run - interval '1 second');
            run := queue_internal.cron_next(cron, run + new_clock) - new_clock;
            IF early < change + greatest(new_clock - old_clock, nothing) THEN
                run := least(early, run);
            END IF;
        END IF;
        IF run IS NULL OR run <= moment + day THEN
            RETURN run AT TIME ZONE 'UTC';
        END IF;
        -- The result is far away, where another change may apply: compute it again from nearby.
        moment := greatest(moment + day, run - 2 * day);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.next_run IS
    'Returns the first time after the given one at which a schedule runs; null if there is none.';

-- Bisects, because a schedule by the second may be years behind. "first" is a run.
CREATE FUNCTION queue_internal.latest_run(cron text, timezone text, first timestamptz, until timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
DECLARE
    latest     timestamptz := first;
    none_after timestamptz := until;
    middle     timestamptz;
    run       timestamptz;
BEGIN
    WHILE none_after - latest >= '1 second' LOOP
        middle := latest + (none_after - latest) / 2;
        run := queue_internal.next_run(cron, timezone, middle);
        IF run <= until THEN
            latest := run;
        ELSE
            none_after := middle;
        END IF;
    END LOOP;
    -- Less than a second is left: at most one run.
    run := queue_internal.next_run(cron, timezone, latest);
    RETURN CASE WHEN run <= until THEN run ELSE latest END;
END
$$;
COMMENT ON FUNCTION queue_internal.latest_run IS 'Returns the last run of a schedule in an interval.';
