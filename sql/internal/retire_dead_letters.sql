-- queue_internal.retire_dead_letters(max_tasks)
--
--   Deletes about "max_tasks" dead letters past "queue.dead_letter_retention" and returns whether there may be more. If
--   triggers keep some, it reads up to ten times as many.
--   Index:    dead_letters_queue_failed_at, queue by queue

CREATE FUNCTION queue_internal.retire_dead_letters(max_tasks integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    retention text := queue_internal.setting('dead_letter_retention', '30d');
    horizon   timestamptz;
    source    text;
    ids       bigint[];
    first     timestamptz;
    last      timestamptz;
    -- The last one that a trigger has kept.
    kept_at   timestamptz := '-infinity';
    kept_id   bigint := 0;
    found     integer := 0;
    gone      integer;
    deleted   integer := 0;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    horizon := clock_timestamp() - retention::interval;
    SELECT d.queue INTO source FROM queue.dead_letters AS d ORDER BY d.queue LIMIT 1;
    WHILE source IS NOT NULL AND deleted < max_tasks AND found < 10 * max_tasks LOOP
        SELECT array_agg(o.id ORDER BY o.failed_at, o.id), min(o.failed_at), max(o.failed_at) INTO ids, first, last FROM (
            SELECT d.id, d.failed_at FROM queue.dead_letters AS d
            WHERE d.queue = source AND (d.failed_at, d.id) > (kept_at, kept_id) AND d.failed_at < horizon
            ORDER BY d.failed_at, d.id LIMIT max_tasks FOR UPDATE SKIP LOCKED) AS o;
        -- In one statement, because users have triggers on the table. The range, because a plan made while it was empty does not
        -- look an array up in the index.
        DELETE FROM queue.dead_letters AS d
        WHERE d.queue = source AND d.failed_at BETWEEN first AND last AND d.id = ANY (ids);
        GET DIAGNOSTICS gone = ROW_COUNT;
        deleted := deleted + gone;
        found := found + coalesce(cardinality(ids), 0);
        IF gone < cardinality(ids) THEN
            kept_at := last;
            kept_id := ids[cardinality(ids)];
        ELSE
            kept_at := '-infinity';
            kept_id := 0;
            SELECT d.queue INTO source FROM queue.dead_letters AS d
            WHERE d.queue > source ORDER BY d.queue LIMIT 1;
        END IF;
    END LOOP;
    RETURN deleted >= max_tasks OR deleted > 0 AND found >= 10 * max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_dead_letters IS
    'Deletes dead letters past their retention; returns whether there may be more.';
