-- queue_internal.retire_history(max_tasks)
--
--   Drops the partitions of queue.history that are entirely past "queue.history_retention", or truncates those on which
--   somebody has created a view; and deletes up to "max_tasks" such rows from queue.history_default, which should have
--   few or none. Returns whether there may be more to do now.
--   Locks:    dropping needs a lock on queue.history for an instant. It waits at most 100 ms for the lock, then leaves
--             the partition for the next time

CREATE FUNCTION queue_internal.retire_history(max_tasks integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    retention text := queue_internal.setting('history_retention', '7d');
    horizon   timestamptz;
    partition text;
    filled    boolean;
    deleted   bigint;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    BEGIN
        LOCK TABLE queue.history_default IN SHARE UPDATE EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
    horizon := clock_timestamp() - retention::interval;
    FOR partition IN
        SELECT p.name FROM queue_internal.history_partitions() AS p
        WHERE p.attached AND (p.day + 1)::timestamp AT TIME ZONE 'UTC' <= horizon
        ORDER BY p.day
    LOOP
        BEGIN
            BEGIN
                EXECUTE format('DROP TABLE queue.%I', partition);
            EXCEPTION WHEN dependent_objects_still_exist THEN
                -- Every role that can name it can create a view of it, even without the right to read it.
                EXECUTE format('SELECT EXISTS (SELECT FROM queue.%I)', partition) INTO filled;
                IF filled THEN
                    -- The background worker checks the triggers of tables from which it deletes, but not of those
                    -- that it truncates (src/guard.rs).
                    EXECUTE format('LOCK TABLE queue.%I', partition);
                    EXECUTE format('DELETE FROM queue.%I WHERE false', partition);
                    EXECUTE format('TRUNCATE queue.%I', partition);
                END IF;
            END;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                RETURN false;
            WHEN undefined_table THEN
                NULL;  -- Somebody has dropped it.
        END;
    END LOOP;
    BEGIN
        DELETE FROM queue.history_default AS h
        WHERE h.ctid = ANY (ARRAY(
            SELECT o.ctid FROM queue.history_default AS o
            WHERE o.finished_at < horizon LIMIT max_tasks FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS deleted = ROW_COUNT;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RETURN false;
    END;
    RETURN deleted = max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_history IS
    'Drops history past its retention; returns whether there may be more.';
