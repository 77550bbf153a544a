-- The indexes beside the primary keys, as in sql/indexes.sql. On YugabyteDB the first column is hashed and the
-- others are in order, which is also what it makes of an index that does not say.

CREATE INDEX tasks_order ON queue.tasks (bucket, queue, priority, run_at, id) WHERE gate < 2;
COMMENT ON INDEX queue.tasks_order IS 'The order in which the tasks of a queue are claimed, in each bucket.';

CREATE INDEX tasks_group ON queue.tasks (group_key, queue, gate, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue.tasks_group IS 'The tasks of a group: those admitted, and those behind them.';

CREATE INDEX events_group ON queue_internal.events (group_key, queue, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue_internal.events_group IS 'The events of a group.';

CREATE INDEX events_task ON queue_internal.events (task_id, id) WHERE task_id IS NOT NULL;
COMMENT ON INDEX queue_internal.events_task IS 'The events of a waiting task.';

CREATE INDEX dependencies_task ON queue_internal.dependencies (task_id, outcome);
COMMENT ON INDEX queue_internal.dependencies_task IS 'The predecessors of a task, by how they ended.';

-- No index on times that only grow: all writes of the moment would go to one tablet. What looks for times
-- (retention, queue.stats) reads the table.

CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS 'The dead letters of a queue, the oldest first.';

CREATE UNIQUE INDEX rights_once ON queue.rights (role, kind, coalesce(queue, ''));
COMMENT ON INDEX queue.rights_once IS 'A role has a right once for each queue.';
