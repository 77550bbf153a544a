-- The indexes other than primary keys, as in sql/indexes.sql. By default, YugabyteDB hashes the first column of an
-- index and orders the others.

CREATE INDEX tasks_order ON queue.tasks (bucket, queue, priority, run_at, id) WHERE admission < 2;
COMMENT ON INDEX queue.tasks_order IS 'The order in which the tasks of a queue are claimed, in each bucket.';

CREATE INDEX tasks_group ON queue.tasks (group_key, queue, admission, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue.tasks_group IS 'The tasks of a group: the admitted, the open and the blocked ones.';

CREATE INDEX tasks_start_by ON queue.tasks (bucket, start_by, id) WHERE start_by IS NOT NULL;
COMMENT ON INDEX queue.tasks_start_by IS 'The tasks with a start deadline, in each bucket.';

CREATE INDEX events_group ON queue_internal.events (group_key, queue, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue_internal.events_group IS 'The events of a group.';

CREATE INDEX events_task ON queue_internal.events (task_id, id) WHERE task_id IS NOT NULL;
COMMENT ON INDEX queue_internal.events_task IS 'The events of a waiting task.';

CREATE INDEX dependencies_task ON queue_internal.dependencies (task_id, outcome);
COMMENT ON INDEX queue_internal.dependencies_task IS 'The predecessors of a task, by how they ended.';

CREATE INDEX outcomes_rest ON queue_internal.outcomes (rest_queue, task_id) WHERE rest_after IS NOT NULL;
COMMENT ON INDEX queue_internal.outcomes_rest IS 'Ended tasks with dependents that have not been notified.';

CREATE INDEX awaits_event ON queue_internal.awaits (event, queue, task_id) WHERE event IS NOT NULL;
COMMENT ON INDEX queue_internal.awaits_event IS 'The tasks that wait for an event.';

CREATE INDEX emitted_rest ON queue_internal.emitted (event, queue) WHERE rest_after IS NOT NULL;
COMMENT ON INDEX queue_internal.emitted_rest IS 'Emitted events of which not all waiting tasks were woken.';

-- There is no index on finished_at: all current writes would go to one tablet. Queries by time (retention, queue.stats)
-- read the table.

CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS 'The dead letters of a queue, the oldest first.';

CREATE UNIQUE INDEX rights_once ON queue.rights (role, kind, coalesce(queue, ''));
COMMENT ON INDEX queue.rights_once IS 'A role has a right once for each queue.';
