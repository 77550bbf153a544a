-- The comments of tables, views and columns, for \d+ and for every tool that shows them.

COMMENT ON TABLE queue.queues IS 'The queues and their options. Change them with queue.create() and queue.configure().';
COMMENT ON COLUMN queue.queues.name IS 'The name of the queue, 1 to 128 bytes.';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts that names no lease.';
COMMENT ON COLUMN queue.queues.timeout IS
    'How long an attempt may take of a task that was pushed without a timeout of its own; null for no limit.';
COMMENT ON COLUMN queue.queues.ttl IS
    'The default start deadline of a task, as an interval from its push; null for none.';
COMMENT ON COLUMN queue.queues.on_expired IS
    'What happens to a task that no worker has claimed by its start deadline: dead makes it a dead letter, cancel cancels it.';
COMMENT ON COLUMN queue.queues.max_queued IS
    'How many queued tasks the queue may have. Pushes beyond that are refused; null for no limit.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'Attempts of a task that was pushed without a number of its own.';
COMMENT ON COLUMN queue.queues.backoff_kind IS 'How the delay grows with each failure: fixed, linear or exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The delay after the first failure.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest delay.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS
    'Jitter, 0 to 1: the largest fraction randomly subtracted from each delay.';
COMMENT ON COLUMN queue.queues.paused_at IS 'When the queue was paused; null if it is not.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many tasks may run at a time; null for no limit.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS
    'How many tasks of a group may run at a time. At 1 they run in the order of their ids.';
COMMENT ON COLUMN queue.queues.rate_limit IS
    'How many tasks may start in any rate_period, each counted with its weight; null for no limit.';
COMMENT ON COLUMN queue.queues.group_rate_limit IS
    'How many tasks of a group may start in any rate_period, each counted with its weight; null for no limit.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The period of rate_limit and group_rate_limit.';
COMMENT ON COLUMN queue.queues.delayed_head IS
    'What happens while the first task of a group is delayed: block makes the others wait, pass lets them run first.';
COMMENT ON COLUMN queue.queues.fair_groups IS 'Whether the groups take turns, one task each.';
COMMENT ON COLUMN queue.queues.ageing IS 'The waiting time that counts as one step of priority; null for none.';
COMMENT ON COLUMN queue.queues.key_ttl IS 'How long a completed or cancelled task keeps its key; null for not at all.';
COMMENT ON COLUMN queue.queues.on_predecessor_failure IS
    'What happens to a task if one that it waits for fails or is cancelled: fail, cancel or continue.';
COMMENT ON COLUMN queue.queues.keep_history IS 'Whether completed and cancelled tasks are kept in queue.history.';
COMMENT ON COLUMN queue.queues.keep_payloads IS 'Whether queue.history keeps the payloads of these tasks.';
COMMENT ON COLUMN queue.queues.durable_leases IS
    'Whether leases of the queue have to survive a crash: on, off or auto; null for what the setting says.';
COMMENT ON COLUMN queue.queues.created_at IS 'When the queue was created.';

COMMENT ON SEQUENCE queue.tasks_id_seq IS 'The ids of tasks. They have gaps and do not follow the order of commits.';
COMMENT ON TABLE queue.tasks IS
    'The tasks that are not finished. A plain INSERT or COPY of queue and payload has the same effect as a push.';
COMMENT ON COLUMN queue.tasks.id IS 'The id of the task, which it keeps in the history and as a dead letter.';
COMMENT ON COLUMN queue.tasks.queue IS 'The name of its queue.';
COMMENT ON COLUMN queue.tasks.state IS
    'waiting (for other tasks), queued or running. A queued task whose run_at is in the future is called scheduled.';
COMMENT ON COLUMN queue.tasks.priority IS 'The task with the smallest priority is claimed first.';
COMMENT ON COLUMN queue.tasks.run_at IS 'Earliest time at which the task can be claimed.';
COMMENT ON COLUMN queue.tasks.attempt IS 'How many attempts have begun, the current one included.';
COMMENT ON COLUMN queue.tasks.max_attempts IS 'Number of attempts; null for the option of the queue.';
COMMENT ON COLUMN queue.tasks.token IS
    'The fencing token: larger with every claim, below 2^53, and not consecutive. Only the newest one is valid.';
COMMENT ON COLUMN queue.tasks.lease_until IS 'When the lease of a running task expires, unless the worker extends it.';
COMMENT ON COLUMN queue.tasks.worker IS 'The name that the worker passed to the claim.';
COMMENT ON COLUMN queue.tasks.claimed_at IS 'When the current or last attempt began.';
COMMENT ON COLUMN queue.tasks.updated_at IS 'When the task last changed.';
COMMENT ON COLUMN queue.tasks.created_at IS 'When the task was pushed.';
COMMENT ON COLUMN queue.tasks.cancel_requested_at IS 'When queue.cancel() was called for the running task.';
COMMENT ON COLUMN queue.tasks.key IS 'Unique among the tasks of the queue that are not finished; null for none.';
COMMENT ON COLUMN queue.tasks.group_key IS
    'The group, of which max_running_per_group tasks may run at a time; null for none.';
COMMENT ON COLUMN queue.tasks.admission IS
    '0, open: the task can be claimed. 1, admitted: it can be claimed, as one of its group. 2, blocked: it waits for '
    'other tasks.';
COMMENT ON COLUMN queue.tasks.backoff IS
    'The parts of the backoff that were given by the push; null for the options of the queue.';
COMMENT ON COLUMN queue.tasks.kind IS 'What sort of work it is, by which workers choose their code; null for none.';
COMMENT ON COLUMN queue.tasks.lease IS 'How long a claim lasts that names no lease; null for the option of the queue.';
COMMENT ON COLUMN queue.tasks.timeout IS 'How long an attempt may take; null for the option of the queue.';
COMMENT ON COLUMN queue.tasks.start_by IS
    'The start deadline: if no worker has claimed the task by then, it expires; null for none.';
COMMENT ON COLUMN queue.tasks.weight IS 'How much of rate_limit and group_rate_limit a start of the task uses up.';
COMMENT ON COLUMN queue.tasks.headers IS 'A JSON object with metadata: request id, user, trace context.';
COMMENT ON COLUMN queue.tasks.payload IS 'What the worker is to do, as the producer pushed it.';
COMMENT ON COLUMN queue.tasks.progress IS 'What the worker last passed to queue.extend() as progress.';
COMMENT ON COLUMN queue.tasks.errors IS
    'An array with an object for each attempt that did not succeed, or with the reason why the task ended without one: attempt, '
    'claimed_at, at (when it ended), worker, error, and the details that the worker passed to queue.fail(), if any. Of more than twenty, the first ten and the last ten.';

COMMENT ON TABLE queue.history IS 'The tasks that completed or were cancelled, in one partition per day (UTC).';
COMMENT ON COLUMN queue.history.state IS 'completed or cancelled.';
COMMENT ON COLUMN queue.history.finished_at IS 'When the task completed or was cancelled.';
COMMENT ON COLUMN queue.history.payload IS
    'What the worker had to do; null if its queue does not keep payloads.';
COMMENT ON COLUMN queue.history.result IS 'What the worker passed to queue.complete().';
COMMENT ON TABLE queue.history_default IS 'The history of days whose partition was not created in time.';
COMMENT ON TABLE queue.dead_letters IS
    'The tasks that failed for good, with their errors, until they are retried, redriven, purged or past their retention.';
COMMENT ON COLUMN queue.dead_letters.failed_at IS 'When the last attempt failed.';
COMMENT ON COLUMN queue.dead_letters.key_ttl IS 'The key_ttl of the push, for the time after a redrive; negative if it counts from the push.';

COMMENT ON VIEW queue.all_tasks IS 'Every task: live, finished, and failed for good.';
COMMENT ON COLUMN queue.all_tasks.state IS 'waiting, queued, running, completed, cancelled or failed.';
COMMENT ON COLUMN queue.all_tasks.finished_at IS
    'When the task completed, failed or was cancelled; null for a live task.';
COMMENT ON COLUMN queue.all_tasks.result IS 'What the worker passed to queue.complete().';

COMMENT ON TYPE queue.claimed_task IS 'What a claim returns: a task and the token of its lease.';
COMMENT ON COLUMN queue.claimed_task.progress IS 'What an earlier attempt last reported as progress.';

-- The same column means the same wherever a task is.
DO $$
DECLARE
    same record;
BEGIN
    FOR same IN
        SELECT a.attrelid::regclass AS relation, a.attname AS name, col_description(t.attrelid, t.attnum) AS comment
        FROM pg_attribute AS a JOIN pg_attribute AS t ON t.attname = a.attname
        WHERE t.attrelid = 'queue.tasks'::regclass AND t.attnum > 0 AND col_description(t.attrelid, t.attnum) IS NOT NULL
          AND a.attrelid IN ('queue.history'::regclass, 'queue.dead_letters'::regclass, 'queue.all_tasks'::regclass,
                             'queue.claimed_task'::regclass)
          AND a.attnum > 0 AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', same.relation, same.name, same.comment);
    END LOOP;
END
$$;

COMMENT ON VIEW queue.stats IS
    'How many tasks of each queue are in which state, and how many finished in the last hour.';
COMMENT ON COLUMN queue.stats.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.stats.paused IS 'Whether the queue is paused.';
COMMENT ON COLUMN queue.stats.queued IS 'Tasks that are due and can be claimed.';
COMMENT ON COLUMN queue.stats.scheduled IS 'Queued tasks whose run_at is in the future.';
COMMENT ON COLUMN queue.stats.waiting IS 'Tasks that wait for other tasks to end.';
COMMENT ON COLUMN queue.stats.blocked IS 'Queued tasks that are blocked in their group.';
COMMENT ON COLUMN queue.stats.running IS 'Tasks that a worker has leased.';
COMMENT ON COLUMN queue.stats.dead IS 'Dead letters.';
COMMENT ON COLUMN queue.stats.oldest_due_age IS
    'For how long the task that has been due longest has been due; null if none is due.';
COMMENT ON COLUMN queue.stats.completed_last_hour IS 'Tasks that completed in the last hour.';
COMMENT ON COLUMN queue.stats.cancelled_last_hour IS 'Tasks that were cancelled in the last hour.';
COMMENT ON COLUMN queue.stats.failed_last_hour IS 'Tasks that became dead letters in the last hour.';
COMMENT ON COLUMN queue.stats.completed_per_second IS 'Tasks that completed, per second, over the last minute.';
COMMENT ON COLUMN queue.stats.counted_at IS
    'When the tasks were counted; null if this query counted them. In the SQL-only edition with many tasks, queue.maintain() '
    'counts them.';
COMMENT ON VIEW queue.workers IS
    'The workers of each queue that hold leases or wait for a task. The SQL-only edition does not show workers that wait.';
COMMENT ON COLUMN queue.workers.worker IS 'The name that the worker passed to claim, take or wait; null if none.';
COMMENT ON COLUMN queue.workers.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.workers.running IS 'How many tasks of the queue the worker has leased.';
COMMENT ON COLUMN queue.workers.working_since IS 'When the earliest of these attempts began.';
COMMENT ON COLUMN queue.workers.next_lease_until IS 'When the first of these leases expires.';
COMMENT ON COLUMN queue.workers.overdue IS 'How many of these leases have expired.';
COMMENT ON COLUMN queue.workers.waiting IS 'How many sessions wait for a task of the queue under that name.';
COMMENT ON COLUMN queue.workers.waiting_since IS 'When the first of these began to wait.';
COMMENT ON COLUMN queue.workers.counted_at IS 'When queue.maintain() read the running tasks; null if this query read them.';
COMMENT ON VIEW queue.batches IS
    'The batches whose callback still waits. Counting the tasks of a large batch takes time.';
COMMENT ON COLUMN queue.batches.batch IS 'The id of the batch and of its callback.';
COMMENT ON COLUMN queue.batches.queue IS 'The queue of the callback.';
COMMENT ON COLUMN queue.batches.created_at IS 'When the batch was created.';
COMMENT ON COLUMN queue.batches.age IS 'How long ago the batch was created.';
COMMENT ON COLUMN queue.batches.sealed_at IS 'When the batch was sealed; null while tasks can be pushed into it.';
COMMENT ON COLUMN queue.batches.unfinished IS 'How many of its tasks have not ended.';
COMMENT ON COLUMN queue.batches.completed IS 'How many of its tasks completed.';
COMMENT ON COLUMN queue.batches.failed IS 'How many of its tasks failed for good.';
COMMENT ON COLUMN queue.batches.cancelled IS 'How many of its tasks were cancelled, purged or deleted.';
COMMENT ON VIEW queue.dependencies IS 'Which tasks wait for which.';
COMMENT ON COLUMN queue.dependencies.task_id IS 'The id of the task that waits.';
COMMENT ON COLUMN queue.dependencies.queue IS 'The queue of the task that waits.';
COMMENT ON COLUMN queue.dependencies.predecessor_id IS 'The id of the task that it waits for.';
COMMENT ON COLUMN queue.dependencies.outcome IS
    'How the predecessor ended: completed, failed, cancelled or purged; null if it has not ended, or if the task that '
    'waits was not notified yet.';
COMMENT ON COLUMN queue.dependencies.on_failure IS
    'What happens to the waiting task if the predecessor fails or is cancelled: cancel, fail or continue; null for the '
    'callback of a batch.';
COMMENT ON COLUMN queue.dependencies.is_batch IS
    'Whether the task is the callback of a batch and the predecessor is a task of that batch.';
COMMENT ON VIEW queue.delayed_events IS
    'How many tasks and groups of each queue cannot be unblocked, although what they waited for has ended. Readable by '
    'pg_monitor.';
COMMENT ON COLUMN queue.delayed_events.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.delayed_events.events IS 'How many tasks and groups were tried more than seven times.';
COMMENT ON COLUMN queue.delayed_events.failing IS
    'How many of them because of an error. The others are locked by another transaction.';
COMMENT ON VIEW queue.failing_handlers IS
    'The handlers that the background worker does not run, and why. Readable by pg_monitor.';
COMMENT ON COLUMN queue.failing_handlers.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.failing_handlers.problem IS 'Why the handler does not run.';
COMMENT ON COLUMN queue.failing_handlers.hint IS 'What to do about it.';
COMMENT ON VIEW queue.failing_schedules IS
    'How many schedules of each queue could not push their last task, and since when.';
COMMENT ON COLUMN queue.failing_schedules.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.failing_schedules.schedules IS 'How many of its schedules fail.';
COMMENT ON COLUMN queue.failing_schedules.since IS 'The earliest run that could not be pushed.';
COMMENT ON COLUMN queue.failing_schedules.last_error_at IS 'When a push last failed.';
COMMENT ON VIEW queue.due_schedules IS
    'How many schedules of each queue are due and have not run yet, and since when. Without those that fail.';
COMMENT ON COLUMN queue.due_schedules.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.due_schedules.schedules IS 'How many of its schedules are due.';
COMMENT ON COLUMN queue.due_schedules.since IS 'The earliest run that was not pushed yet.';

COMMENT ON TABLE queue.schedules IS
    'The schedules. Change them with queue.schedule(), queue.unschedule() and queue.pause_schedule().';
COMMENT ON COLUMN queue.schedules.name IS 'The name of the schedule, unique in the database.';
COMMENT ON COLUMN queue.schedules.cron IS 'The cron expression: five or six fields, or a macro.';
COMMENT ON COLUMN queue.schedules.timezone IS 'The time zone of the expression, a name from pg_timezone_names.';
COMMENT ON COLUMN queue.schedules.queue IS 'The queue to which each run pushes a task.';
COMMENT ON COLUMN queue.schedules.payload IS 'The payload of each task.';
COMMENT ON COLUMN queue.schedules.options IS 'Further arguments of queue.push() for each task.';
COMMENT ON COLUMN queue.schedules.missed_runs IS 'What happens with runs that nothing ran in time: skip, once or all.';
COMMENT ON COLUMN queue.schedules.next_run_at IS 'The next run; null while the schedule is paused.';
COMMENT ON COLUMN queue.schedules.last_run_at IS 'The last run for which a task was pushed.';
COMMENT ON COLUMN queue.schedules.paused_at IS 'When the schedule was paused; null if it is not.';
COMMENT ON COLUMN queue.schedules.last_error IS 'Why the last push failed; null if it succeeded.';
COMMENT ON COLUMN queue.schedules.last_error_at IS 'When a push last failed.';
COMMENT ON COLUMN queue.schedules.created_at IS 'When the schedule was created.';
COMMENT ON TABLE queue.bindings IS
    'Which topics each queue is bound to. Change it with queue.bind() and queue.unbind().';
COMMENT ON COLUMN queue.bindings.topic_pattern IS 'Words and dots; * matches one word, # any number of words.';
COMMENT ON COLUMN queue.bindings.queue IS 'The queue to which queue.publish() pushes.';
COMMENT ON COLUMN queue.bindings.topic_regex IS
    'The pattern as a regular expression, for the topic with a dot before it.';
COMMENT ON COLUMN queue.bindings.created_at IS 'When the binding was created.';
COMMENT ON TABLE queue.handlers IS
    'The functions that handle tasks in the database, one for each queue. Change them with queue.attach() and queue.detach().';
COMMENT ON COLUMN queue.handlers.queue IS 'The queue whose tasks are handled.';
COMMENT ON COLUMN queue.handlers.handler IS 'The name of the function that is called for each task.';
COMMENT ON COLUMN queue.handlers.role IS 'The role that claims the tasks and calls the function.';
COMMENT ON COLUMN queue.handlers.workers IS 'How many processes handle tasks at the same time.';
COMMENT ON COLUMN queue.handlers.created_at IS 'When the handler was attached.';
COMMENT ON TABLE queue.rights IS
    'The rights of roles. Change them with queue.grant_producer(), queue.revoke_producer() and their counterparts.';
COMMENT ON COLUMN queue.rights.role IS 'The role that has the right.';
COMMENT ON COLUMN queue.rights.kind IS 'producer, worker or operator.';
COMMENT ON COLUMN queue.rights.queue IS 'The queue that the right is for; null for all.';

COMMENT ON TABLE queue_internal.keys IS 'Which task has a key, and until when after it finished.';
COMMENT ON TABLE queue_internal.dependencies IS 'Which task waits for which predecessors, and how those ended.';
COMMENT ON TABLE queue_internal.batches IS 'Which tasks are callbacks of batches, and which batches are sealed.';
COMMENT ON TABLE queue_internal.outcomes IS 'Outcomes of tasks with dependents that were not notified when the task ended.';
COMMENT ON TABLE queue_internal.events IS 'Hints to check a waiting task or a group; the next claim processes them.';
COMMENT ON TABLE queue_internal.group_heads IS 'Groups with many dead index entries: no task of the group has a smaller id.';
COMMENT ON TABLE queue_internal.group_returns IS 'Tasks that were put back into a group, until its head is not above them.';
COMMENT ON TABLE queue_internal.settling IS 'An id that will be settled, and the transactions that it waits for.';
COMMENT ON SEQUENCE queue_internal.settled_id_seq IS 'The id up to which no open push can add a task.';
COMMENT ON SEQUENCE queue_internal.settling_due_seq IS 'When to look again, in microseconds since 1970.';
COMMENT ON SEQUENCE queue_internal.events_id_seq IS 'The order of the events.';
COMMENT ON TABLE queue_internal.steps IS 'What tasks stored with queue.step(), and what they waited for and got.';
COMMENT ON TABLE queue_internal.awaits IS 'Which event or which other task a suspended task waits for.';
COMMENT ON TABLE queue_internal.emitted IS 'The events that were emitted, and those that tasks wait for.';
COMMENT ON TABLE queue_internal.locks IS
    'Rows that are only locked, by the transaction that admits tasks of a group; each queue has its own.';
COMMENT ON TABLE queue_internal.slots IS 'The slots of queues with max_running, and the task that last took each.';
COMMENT ON TABLE queue_internal.token_mark IS
    'One row: how far tokens have been handed out, so that none is handed out twice after a crash or failover.';
COMMENT ON TABLE queue_internal.rate_buckets IS 'The rate buckets of queues with a rate limit: when tasks started.';
COMMENT ON TABLE queue_internal.group_starts IS 'When tasks of groups started, in queues with a rate limit per group.';
