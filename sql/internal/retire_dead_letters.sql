-- queue_internal.retire_dead_letters(max_tasks)
--
--   Deletes up to "max_tasks" dead letters past "queue.dead_letter_retention" and returns whether
--   there may be more.
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
    letter    bigint;
    deleted   integer := 0;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    horizon := clock_timestamp() - retention::interval;
    SELECT d.queue INTO source FROM queue.dead_letters AS d ORDER BY d.queue LIMIT 1;
    WHILE source IS NOT NULL AND deleted < max_tasks LOOP
        FOR letter IN
            SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = source AND d.failed_at < horizon
            ORDER BY d.failed_at LIMIT max_tasks - deleted FOR UPDATE SKIP LOCKED
        LOOP
            DELETE FROM queue.dead_letters AS d WHERE d.id = letter;
            deleted := deleted + 1;
        END LOOP;
        SELECT d.queue INTO source FROM queue.dead_letters AS d
        WHERE d.queue > source ORDER BY d.queue LIMIT 1;
    END LOOP;
    RETURN deleted >= max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_dead_letters IS
    'Deletes dead letters past their retention; returns whether there may be more.';
