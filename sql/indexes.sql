-- The indexes other than primary keys, each with the functions that need it. Those on queue.tasks must not contain
-- columns that a claim changes: see tables.sql.

-- claim: the next task of a queue. due_queues: which tasks became due, and which is next.
CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE admission < 2;
COMMENT ON INDEX queue.tasks_order IS
    'The order in which the tasks of a queue are claimed. Holds no column that a claim changes.';

-- admit_next: which tasks of a group are admitted, and which is next. sweep_groups: the groups of a queue.
CREATE INDEX tasks_group ON queue.tasks (queue, group_key, admission, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue.tasks_group IS 'The tasks of a group: the admitted, the open and the blocked ones.';

-- expire_unstarted: the tasks in the order of their start deadlines. Tasks without one have no entry.
CREATE INDEX tasks_start_by ON queue.tasks (start_by, id) WHERE start_by IS NOT NULL;
COMMENT ON INDEX queue.tasks_start_by IS 'The tasks with a start deadline. Holds no column that a claim changes.';

-- process_events: all events of a group, or of a task, at once.
CREATE INDEX events_group ON queue_internal.events (queue, group_key, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue_internal.events_group IS 'The events of a group.';
CREATE INDEX events_task ON queue_internal.events (task_id, id) WHERE task_id IS NOT NULL;
COMMENT ON INDEX queue_internal.events_task IS 'The events of a waiting task.';

-- process_dependent: whether a task still waits, and whether a predecessor failed.
CREATE INDEX dependencies_task ON queue_internal.dependencies (task_id, outcome);
COMMENT ON INDEX queue_internal.dependencies_task IS 'The predecessors of a task, by how they ended.';

-- notify_rests: the ended tasks with dependents that have not been notified.
CREATE INDEX outcomes_rest ON queue_internal.outcomes (rest_queue, task_id) WHERE rest_after IS NOT NULL;
COMMENT ON INDEX queue_internal.outcomes_rest IS 'Ended tasks with dependents that have not been notified.';

-- retire_outcomes: the oldest first.
CREATE INDEX outcomes_ended_at ON queue_internal.outcomes (ended_at);
COMMENT ON INDEX queue_internal.outcomes_ended_at IS 'Outcomes, the oldest first.';

-- emit: the tasks that wait for an event. sweep_emitted: whether any does.
CREATE INDEX awaits_event ON queue_internal.awaits (queue, event, task_id) WHERE event IS NOT NULL;
COMMENT ON INDEX queue_internal.awaits_event IS 'The tasks that wait for an event.';

-- wake_rest: the emitted events of which not all waiting tasks were woken.
CREATE INDEX emitted_rest ON queue_internal.emitted (queue, event) WHERE rest_after IS NOT NULL;
COMMENT ON INDEX queue_internal.emitted_rest IS 'Emitted events of which not all waiting tasks were woken.';

-- retire_keys: the keys whose time has passed.
CREATE INDEX keys_expiry ON queue_internal.keys (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON INDEX queue_internal.keys_expiry IS 'Keys that finished tasks keep for a time.';

-- stats: what finished in the last hour. A BRIN index costs an insert almost nothing. Each partition of the history
-- has its own, as it has its own primary key.
CREATE INDEX history_default_finished_at ON queue.history_default
    USING brin (finished_at) WITH (pages_per_range = 32);
COMMENT ON INDEX queue.history_default_finished_at IS 'Finds the tasks that finished in an interval.';

-- retire_group_starts: the starts that no longer count.
CREATE INDEX group_starts_expiry ON queue_internal.group_starts (expires_at);
COMMENT ON INDEX queue_internal.group_starts_expiry IS 'Finds the starts of groups that no longer count.';

-- fire_schedules: the schedules that became due since the last call.
CREATE INDEX schedules_next_run_at ON queue.schedules (next_run_at) WHERE paused_at IS NULL;
COMMENT ON INDEX queue.schedules_next_run_at IS 'Finds the schedules that are due.';

-- redrive, retire_dead_letters: the oldest of a queue first.
CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS
    'The dead letters of a queue, the oldest first.';

-- grant_producer and its counterparts: a role has a right once.
CREATE UNIQUE INDEX rights_once ON queue.rights (role, kind, coalesce(queue, ''));
COMMENT ON INDEX queue.rights_once IS 'A role has a right once for each queue.';
