-- What the tables and their columns are, for \d+ and for every tool that shows comments.

COMMENT ON TABLE queue.queues IS 'The queues and their defaults. Change them with queue.configure().';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts that names no lease.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'How often a task is tried that names no number of its own.';
COMMENT ON COLUMN queue.queues.backoff_kind IS 'How the wait grows with each failure: fixed, linear, exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The wait after the first failure.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest wait.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS 'The share of a wait, 0 to 1, of which chance takes a part off.';
COMMENT ON COLUMN queue.queues.paused_at IS 'Since when nothing is claimed from the queue.';
COMMENT ON COLUMN queue.queues.max_running IS 'Reserved: how many tasks may run at a time.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS 'Reserved: how many tasks of a group may run at a time.';
COMMENT ON COLUMN queue.queues.rate_limit IS 'Reserved: how many tasks may start in a rate_period.';
COMMENT ON COLUMN queue.queues.rate_period IS 'Reserved: the time over which rate_limit counts.';
COMMENT ON COLUMN queue.queues.keep_history IS 'Whether finished tasks are kept in queue.history.';

COMMENT ON SEQUENCE queue.tasks_id_seq IS 'The ids of tasks. They have gaps and do not follow the order of commits.';
COMMENT ON TABLE queue.tasks IS
    'The tasks that are not finished. A plain INSERT or COPY of queue and payload works as a push does.';
COMMENT ON COLUMN queue.tasks.state IS 'waiting, queued or running. Scheduled is queued with run_at to come.';
COMMENT ON COLUMN queue.tasks.priority IS 'The smaller runs first.';
COMMENT ON COLUMN queue.tasks.run_at IS 'Not claimed before.';
COMMENT ON COLUMN queue.tasks.attempt IS 'How many attempts were begun.';
COMMENT ON COLUMN queue.tasks.max_attempts IS 'How many attempts are made; null for what the queue says.';
COMMENT ON COLUMN queue.tasks.token IS 'Grows with every claim. Only the newest one counts.';
COMMENT ON COLUMN queue.tasks.lease_until IS 'Until when the worker has the task, unless it extends the lease.';
COMMENT ON COLUMN queue.tasks.worker IS 'The name that the worker gave itself.';
COMMENT ON COLUMN queue.tasks.claimed_at IS 'When the running attempt began.';
COMMENT ON COLUMN queue.tasks.cancel_requested_at IS 'When queue.cancel() was called for the running task.';
COMMENT ON COLUMN queue.tasks.key IS 'Reserved for keys that keep duplicates out.';
COMMENT ON COLUMN queue.tasks.group_key IS 'Reserved for groups whose tasks run in order.';
COMMENT ON COLUMN queue.tasks.headers IS 'A JSON object about the task: request id, user, trace context.';
COMMENT ON COLUMN queue.tasks.payload IS 'What is to be done, as the producer wrote it.';
COMMENT ON COLUMN queue.tasks.progress IS 'What the worker last said of its progress.';
COMMENT ON COLUMN queue.tasks.errors IS 'An array with one element for each attempt that did not succeed: attempt, at, worker, error.';

COMMENT ON TABLE queue.history IS 'The tasks that completed or were cancelled, a partition per day (UTC).';
COMMENT ON COLUMN queue.history.state IS 'completed or cancelled.';
COMMENT ON COLUMN queue.history.result IS 'What the worker gave to queue.complete().';
COMMENT ON TABLE queue.history_default IS 'The history of days that had no partition in time.';
COMMENT ON TABLE queue.dead_letters IS
    'The tasks that failed for good, with every error, until they are retried, redriven or purged.';
COMMENT ON TABLE queue.schedules IS 'Reserved for recurring pushes. This version does not run them.';
COMMENT ON TABLE queue.bindings IS
    'Which queue gets what is published under which topics. Change it with queue.bind() and queue.unbind().';
COMMENT ON COLUMN queue.bindings.topic_pattern IS 'Words and dots; * is one word, # any number of words.';
COMMENT ON COLUMN queue.bindings.topic_regex IS 'The pattern as a regular expression, for the topic with a dot before it.';
COMMENT ON TABLE queue.rights IS 'Which role may do what. Change it with queue.grant_producer() and its like.';
COMMENT ON COLUMN queue.rights.queue IS 'The queue that the right is for; null for all.';
COMMENT ON TYPE queue.claimed_task IS 'What a claim hands out: a task and the token of its lease.';
