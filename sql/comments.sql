-- What the tables and their columns are, for \d+ and for every tool that shows comments.

COMMENT ON TABLE queue.queues IS 'The queues and their defaults. Change them with queue.configure().';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts that names no lease.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'How often a task is tried that names no number of its own.';
COMMENT ON COLUMN queue.queues.backoff_kind IS 'How the wait grows with each failure: fixed, linear, exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The wait after the first failure.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest wait.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS 'The share of a wait, 0 to 1, of which chance takes a part off.';
COMMENT ON COLUMN queue.queues.paused_at IS 'Since when nothing is claimed from the queue.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many tasks may run at a time; null for any number.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS 'How many tasks of a group may run at a time. At 1 they run in the order of their ids.';
COMMENT ON COLUMN queue.queues.rate_limit IS 'How many tasks may start in any rate_period; null for any number.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The time over which rate_limit counts.';
COMMENT ON COLUMN queue.queues.delayed_head IS
    'What the first task of a group does while it is delayed: block those behind it, or let them pass.';
COMMENT ON COLUMN queue.queues.fair_groups IS 'Whether the groups take turns, one task each.';
COMMENT ON COLUMN queue.queues.ageing IS 'How long a task has to wait to gain one step of priority; null for never.';
COMMENT ON COLUMN queue.queues.key_ttl IS 'How long a finished task keeps its key; null for not at all.';
COMMENT ON COLUMN queue.queues.on_predecessor_failure IS
    'What becomes of a task when one that it waits for fails or is cancelled: fail, cancel, continue.';
COMMENT ON COLUMN queue.queues.keep_history IS 'Whether finished tasks are kept in queue.history.';

COMMENT ON SEQUENCE queue.tasks_id_seq IS 'The ids of tasks. They have gaps and do not follow the order of commits.';
COMMENT ON TABLE queue.tasks IS
    'The tasks that are not finished. A plain INSERT or COPY of queue and payload works as a push does.';
COMMENT ON COLUMN queue.tasks.state IS 'waiting, queued or running. Scheduled is queued with run_at to come.';
COMMENT ON COLUMN queue.tasks.priority IS 'The smaller runs first.';
COMMENT ON COLUMN queue.tasks.run_at IS 'Not claimed before.';
COMMENT ON COLUMN queue.tasks.attempt IS 'How many attempts were begun.';
COMMENT ON COLUMN queue.tasks.max_attempts IS 'How many attempts are made; null for what the queue says.';
COMMENT ON COLUMN queue.tasks.token IS 'The fencing token: larger with every claim, below 2^53, and not consecutive. Only the newest one counts.';
COMMENT ON COLUMN queue.tasks.lease_until IS 'Until when the worker has the task, unless it extends the lease.';
COMMENT ON COLUMN queue.tasks.worker IS 'The name that the worker gave itself.';
COMMENT ON COLUMN queue.tasks.claimed_at IS 'When the running attempt began.';
COMMENT ON COLUMN queue.tasks.cancel_requested_at IS 'When queue.cancel() was called for the running task.';
COMMENT ON COLUMN queue.tasks.key IS 'No other live task of the queue has it.';
COMMENT ON COLUMN queue.tasks.group_key IS 'The group, of which max_running_per_group may run at a time.';
COMMENT ON COLUMN queue.tasks.gate IS
    'Admission. 0, open: a claim may take it. 1, admitted: it may, as one of its group. 2, blocked: it waits for others.';
COMMENT ON COLUMN queue.tasks.backoff IS 'How the wait grows with each failure, where the task was pushed with its own.';
COMMENT ON COLUMN queue.tasks.headers IS 'A JSON object about the task: request id, user, trace context.';
COMMENT ON COLUMN queue.tasks.payload IS 'What is to be done, as the producer wrote it.';
COMMENT ON COLUMN queue.tasks.progress IS 'What the worker last said of its progress.';
COMMENT ON COLUMN queue.tasks.errors IS
    'An array with one element for each attempt that did not succeed: attempt, at, worker, error. The first ten and the last ten.';

COMMENT ON TABLE queue.history IS 'The tasks that completed or were cancelled, a partition per day (UTC).';
COMMENT ON COLUMN queue.history.state IS 'completed or cancelled.';
COMMENT ON COLUMN queue.history.result IS 'What the worker gave to queue.complete().';
COMMENT ON TABLE queue.history_default IS 'The history of days that had no partition in time.';
COMMENT ON TABLE queue.dead_letters IS
    'The tasks that failed for good, with every error, until they are retried, redriven or purged.';
COMMENT ON TABLE queue_internal.keys IS 'Which task has a key, and until when after it finished.';
COMMENT ON TABLE queue_internal.dependencies IS 'Which task waits for which, and how those it waits for have ended.';
COMMENT ON TABLE queue_internal.outcomes IS 'How tasks ended that could not tell their dependents.';
COMMENT ON TABLE queue_internal.events IS 'Hints to look at a waiting task or at a group; processed by the next claim.';
COMMENT ON SEQUENCE queue_internal.events_id_seq IS 'The order of the events.';
COMMENT ON TABLE queue_internal.locks IS 'Rows that are only ever locked, by the transaction that admits tasks of a group; each queue has its own.';
COMMENT ON TABLE queue_internal.slots IS 'The places of queues with max_running, and the task that took each last.';
COMMENT ON TABLE queue_internal.token_mark IS
    'One row: how far tokens have been handed out, so that none is handed out twice after a crash or failover.';
COMMENT ON TABLE queue_internal.tokens IS 'The tokens of queues with a rate limit, and when those missing were taken.';
COMMENT ON TABLE queue.schedules IS 'The recurring pushes. Change them with queue.schedule() and its like.';
COMMENT ON COLUMN queue.schedules.cron IS 'The local times at which it runs, as five or six cron fields or a macro.';
COMMENT ON COLUMN queue.schedules.timezone IS 'The zone whose local times are meant, as in pg_timezone_names.';
COMMENT ON COLUMN queue.schedules.queue IS 'Where each run pushes a task.';
COMMENT ON COLUMN queue.schedules.payload IS 'The payload of each task.';
COMMENT ON COLUMN queue.schedules.options IS 'The arguments of queue.push() for each task, as far as they are given.';
COMMENT ON COLUMN queue.schedules.missed_runs IS
    'What becomes of runs that came due while nobody ran them: skip, once, all.';
COMMENT ON COLUMN queue.schedules.next_run_at IS 'When it runs next; null while it is paused.';
COMMENT ON COLUMN queue.schedules.last_run_at IS 'The time for which the last task was pushed.';
COMMENT ON COLUMN queue.schedules.paused_at IS 'Since when it does not run.';
COMMENT ON COLUMN queue.schedules.last_error IS 'Why its runs fail; null when the last one succeeded.';
COMMENT ON COLUMN queue.schedules.last_error_at IS 'When a run last failed.';
COMMENT ON TABLE queue.bindings IS
    'Which queue gets what is published under which topics. Change it with queue.bind() and queue.unbind().';
COMMENT ON COLUMN queue.bindings.topic_pattern IS 'Words and dots; * is one word, # any number of words.';
COMMENT ON COLUMN queue.bindings.topic_regex IS 'The pattern as a regular expression, for the topic with a dot before it.';
COMMENT ON TABLE queue.rights IS 'Which role may do what. Change it with queue.grant_producer() and its like.';
COMMENT ON COLUMN queue.rights.queue IS 'The queue that the right is for; null for all.';
COMMENT ON TYPE queue.claimed_task IS 'What a claim hands out: a task and the token of its lease.';
