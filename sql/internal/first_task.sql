-- The first task in the order of a bucket, whatever its state: its priority and its run_at.
--
--   What comes before the level and the head given is not looked at (mark.sql). "fresh" is for editions that keep in mind
--   where the first task was.
--   Why SQL and no search_path: so the planner puts the query in the place of the call, as with task_in_bucket (buckets.sql).

CREATE FUNCTION queue_internal.first_task(
    in_bucket integer, in_queue text, since_level integer, since_head timestamptz, fresh boolean,
    OUT level integer, OUT head timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT t.priority, t.run_at FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = in_queue AND t.gate < 2
      AND (t.priority, t.run_at) >= (since_level, since_head)
    ORDER BY t.priority, t.run_at LIMIT 1;
END;
COMMENT ON FUNCTION queue_internal.first_task IS
    'The priority and the run_at of the first task in a bucket of a queue.';

-- A task that this session lets into the order is not overtaken by what it claims.
CREATE FUNCTION queue_internal.keep_in_view(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mark queue_internal.mark := queue_internal.mark_of(task.queue);
BEGIN
    IF (task.priority, task.run_at) < (mark.level, mark.head) THEN
        mark.level := task.priority;
        mark.head := task.run_at;
        PERFORM queue_internal.set_mark(task.queue, mark);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.keep_in_view IS
    'Moves the mark of this session back to a task, if it is ahead of it.';
