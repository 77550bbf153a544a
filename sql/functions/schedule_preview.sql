-- queue.schedule_preview: computes, and touches no table.

CREATE FUNCTION queue.schedule_preview(
    cron text, timezone text DEFAULT 'UTC', runs integer DEFAULT 5, since timestamptz DEFAULT NULL)
RETURNS SETOF timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run timestamptz := coalesce(since, statement_timestamp());
BEGIN
    PERFORM queue_internal.check_cron(cron);
    PERFORM queue_internal.check_timezone(timezone);
    IF runs IS NULL THEN
        PERFORM queue_internal.raise_null('runs');
    ELSIF runs < 1 THEN
        PERFORM queue_internal.raise_invalid('runs', 'must be greater than zero', runs::text);
    ELSIF runs > 10000 THEN
        PERFORM queue_internal.raise_too_large('runs', '10000', runs::text);
    ELSIF run NOT BETWEEN '0002-01-01 UTC' AND '4000-01-01 UTC' THEN
        PERFORM queue_internal.raise_invalid('since', 'must be from the years 2 to 3999', since::text);
    END IF;
    FOR n IN 1..runs LOOP
        run := queue_internal.next_run(cron, timezone, run);
        EXIT WHEN run IS NULL;
        RETURN NEXT run;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.schedule_preview IS
'Returns the next runs that a schedule would have.

- cron: a cron expression, as in queue.schedule.
- timezone: a name from pg_timezone_names. Default UTC.
- runs: number of runs, 1 to 10000. Default 5.
- since: the runs after this time, from the years 2 to 3999. Null (default) means now.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
