-- queue.create
--
--   Waits:    for a transaction that creates or drops a queue of this name
--   Touches:  queue.queues (inserts)

CREATE FUNCTION queue.create(name text, options jsonb DEFAULT '{}', if_not_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.check_options(options);
    IF name ~ '[[:cntrl:]]' THEN
        PERFORM queue_internal.raise_invalid('name', 'must not contain control characters');
    ELSIF if_not_exists IS NULL THEN
        PERFORM queue_internal.raise_null('if_not_exists');
    END IF;
    PERFORM queue_internal.check_right('operator', name);
    -- Without an exception handler, which would take the error of a user's trigger for this one.
    INSERT INTO queue.queues (name) VALUES ("create".name) ON CONFLICT ON CONSTRAINT queues_pkey DO NOTHING;
    IF FOUND THEN
        PERFORM queue_internal.apply_options(name, options, true);
        -- Events of an earlier queue of that name: a drop at REPEATABLE READ does not see those emitted meanwhile.
        DELETE FROM queue_internal.emitted AS e WHERE e.queue = "create".name;
    ELSIF if_not_exists THEN
        RAISE NOTICE 'queue "%" already exists, skipping', name;
    ELSE
        RAISE EXCEPTION 'queue "%" already exists', name
            USING ERRCODE = 'duplicate_object',
                  HINT = format('Change its options with SELECT queue.configure(%L, ...).', name);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.create IS
'Creates a queue. Needs the operator''s right on all queues, or on a queue of this name.

- name: 1 to 128 bytes without control characters.
- options: a JSON object. Intervals are strings of at most a year. Default {}: each option has its default.
- if_not_exists: true changes nothing if the queue exists, also not its options, and raises a notice instead of an
  error. Default false.

Options:

- lease: how long a claim lasts that names no lease. Default "1 minute".
- timeout: how long an attempt may take. Then it has failed with the error "timed out", and its lease cannot be
  extended further. Default null: no limit.
- ttl: the default start deadline of a task, as an interval from its push. Default null: none.
- on_expired: dead (default) or cancel: whether a task that no worker has claimed by its start deadline becomes a dead
  letter or is cancelled.
- max_queued: how many queued tasks the queue may have, scheduled and blocked ones included. Pushes beyond that raise
  QX006. Concurrent pushes can exceed it together. 1 to 2147483647. Default null: no limit.
- max_attempts: number of attempts of a task, 1 to 10000. Default 20.
- backoff: an object: kind (fixed, linear, exponential; default exponential), base (the delay after the first failure;
  default "1 second"), max (the longest delay; default "1 hour"), jitter (0 to 1, the largest fraction randomly
  subtracted from each delay; default 0.1).
- max_running: how many tasks may run at a time, 1 to 10000. Default null: no limit.
- max_running_per_group: how many tasks of a group may run at a time, 1 to 10000. Default 1.
- delayed_head: block (default) or pass: whether the tasks of a group wait while their first one is delayed.
- fair_groups: true lets the groups take turns. Default false.
- rate_limit: how many tasks may start in any rate_period, each counted with its weight, 1 to 10000. Default null: no
  limit.
- group_rate_limit: how many tasks of a group may start in any rate_period, each counted with its weight, 1 to 10000.
  Default null: no limit.
- rate_period: the period of rate_limit and group_rate_limit. Required with either, and not allowed without. Default
  null.
- ageing: the waiting time that counts as one step of priority. Default null: none.
- key_ttl: how long a completed or cancelled task keeps its key. Default null: not at all.
- on_predecessor_failure: cancel (default), fail or continue: what happens to a task if one that it waits for fails or
  is cancelled.
- keep_history: whether completed and cancelled tasks are kept in queue.history. Default true.
- keep_payloads: whether the history keeps the payloads of these tasks. If false, the end of a task does not write its
  payload again, and queue.run_again() refuses the task. Dead letters keep their payloads. Default true.
- durable_leases: on, off or auto: whether the commit of a claim waits for the disk, so that its lease survives a crash.
  Default null: what the setting "queue.durable_leases" of the session says.

Errors: 42501: no right. 42710: the queue exists and if_not_exists is false. 22004, 22023 or 54000: an argument or an
option is null, invalid or too large.';

CREATE FUNCTION queue_internal.check_options(options jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF options IS NULL THEN
        PERFORM queue_internal.raise_null('options');
    ELSIF jsonb_typeof(options) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('options', 'must be a JSON object', 'of type ' || jsonb_typeof(options));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_options IS 'Checks that options are a JSON object.';
