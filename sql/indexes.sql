-- The indexes beside the primary keys, each with the verb that needs it. On queue.tasks there is
-- one, and it must stay so: see tables.sql on what a claim changes.

-- claim: the next task of a queue. due_queues: what came due, and what comes next.
CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id);
COMMENT ON INDEX queue.tasks_order IS
    'The order in which the tasks of a queue are claimed. Holds no column that a claim changes.';

-- stats: what was finished lately. A block range index costs an insert next to nothing.
CREATE INDEX history_finished_at ON queue.history USING brin (finished_at) WITH (pages_per_range = 32);
COMMENT ON INDEX queue.history_finished_at IS 'Finds what was finished in a span of time.';

-- redrive, retire_dead_letters: the oldest of a queue first.
CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS
    'The dead letters of a queue, the oldest first.';
