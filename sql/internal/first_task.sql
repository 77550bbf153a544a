-- The first task in the order of a bucket, whatever its state: its priority and its run_at.
--
--   Tasks before the level and the head given are not read (scan_start.sql). "fresh" is for editions that remember
--   where the first task was.
--   Why SQL and no search_path: so that the planner inlines the query, as with task_in_bucket (buckets.sql).

CREATE FUNCTION queue_internal.first_task(
    in_bucket integer, in_queue text, since_level integer, since_head timestamptz, fresh boolean,
    OUT level integer, OUT head timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT t.priority, t.run_at FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = in_queue AND t.admission < 2
      AND (t.priority, t.run_at) >= (since_level, since_head)
    ORDER BY t.priority, t.run_at LIMIT 1;
END;
COMMENT ON FUNCTION queue_internal.first_task IS
    'Returns the priority and the run_at of the first task in a bucket of a queue.';

-- Keeps this session's claims from overtaking a task that it has just unblocked.
CREATE FUNCTION queue_internal.move_scan_start_back(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    scan_start queue_internal.scan_start;
BEGIN
    IF NOT queue_internal.has_scan_starts() THEN
        RETURN;
    END IF;
    scan_start := queue_internal.get_scan_start(task.queue);
    IF (task.priority, task.run_at) < (scan_start.level, scan_start.head) THEN
        scan_start.level := task.priority;
        scan_start.head := task.run_at;
        PERFORM queue_internal.set_scan_start(task.queue, scan_start);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.move_scan_start_back IS
    'Moves the scan start of this session back to a task, if it is after it.';
