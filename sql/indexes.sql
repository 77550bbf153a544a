-- The indexes beside the primary keys, each with the verb that needs it. Those on queue.tasks must
-- not mention what a claim changes: see tables.sql.

-- claim: the next task of a queue. due_queues: what came due, and what comes next.
CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE gate < 2;
COMMENT ON INDEX queue.tasks_order IS
    'The order in which the tasks of a queue are claimed. Holds no column that a claim changes.';

-- settle_signals: who of a group is admitted, and who is next.
CREATE INDEX tasks_group ON queue.tasks (queue, group_key, gate, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue.tasks_group IS 'The tasks of a group: those admitted, and those behind them.';

-- settle_signals: all signals of a group at once.
CREATE INDEX signals_group ON queue_internal.signals (queue, group_key, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue_internal.signals_group IS 'The signals of a group.';

-- settle_signals: how a predecessor that left no trace ended.
CREATE INDEX signals_task ON queue_internal.signals (task_id, predecessor_id) WHERE predecessor_id IS NOT NULL;
COMMENT ON INDEX queue_internal.signals_task IS 'What a waiting task is told of its predecessors.';

-- settle_signals: whether a task still waits for anything.
CREATE INDEX dependencies_task ON queue_internal.dependencies (task_id);
COMMENT ON INDEX queue_internal.dependencies_task IS 'What a task waits for.';

-- retire_keys: the keys whose time is over.
CREATE INDEX keys_expiry ON queue_internal.keys (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON INDEX queue_internal.keys_expiry IS 'Keys that are held for a time after their task finished.';

-- stats: what was finished lately. A block range index costs an insert next to nothing. Each
-- partition of the history has its own, as it has its own primary key.
CREATE INDEX history_default_finished_at ON queue.history_default
    USING brin (finished_at) WITH (pages_per_range = 32);
COMMENT ON INDEX queue.history_default_finished_at IS 'Finds what was finished in a span of time.';

-- redrive, retire_dead_letters: the oldest of a queue first.
CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS
    'The dead letters of a queue, the oldest first.';

-- grant_producer and its like: a right is given once.
CREATE UNIQUE INDEX rights_once ON queue.rights (role, kind, coalesce(queue, ''));
COMMENT ON INDEX queue.rights_once IS 'A role has a right once for each queue.';
