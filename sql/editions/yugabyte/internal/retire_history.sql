-- Deletes up to "max_tasks" rows past "queue.history_retention"; returns whether there may be more.
CREATE FUNCTION queue_internal.retire_history(max_tasks integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    retention text := queue_internal.setting('history_retention', '7d');
    deleted   bigint;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    DELETE FROM queue.history_default AS h
    WHERE h.id = ANY (ARRAY(
        SELECT o.id FROM queue.history_default AS o
        WHERE o.finished_at < clock_timestamp() - retention::interval LIMIT max_tasks FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted = max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_history IS
    'Deletes history past its retention; returns whether there may be more.';
