-- The indexes beside the primary keys, each with the verb that needs it. On queue.tasks there is
-- one, and it must stay so: see tables.sql on what a claim changes.

-- claim: the next task of a queue. due_queues: what came due, and what comes next.
CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id);
COMMENT ON INDEX queue.tasks_order IS
    'The order in which the tasks of a queue are claimed. Holds no column that a claim changes.';

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
