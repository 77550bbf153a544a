-- The errors that several functions raise.
--
-- Messages are short and factual, details are sentences of facts, hints say what to do. They may contain the values of
-- arguments, but never payloads.

CREATE FUNCTION queue_internal.raise_null(argument text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "%" must not be null', argument
        USING ERRCODE = 'null_value_not_allowed';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_null IS 'Raises 22004.';

CREATE FUNCTION queue_internal.raise_invalid(argument text, rule text, value text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL THEN
        RAISE EXCEPTION 'argument "%" %', argument, rule USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RAISE EXCEPTION 'argument "%" %', argument, rule
        USING ERRCODE = 'invalid_parameter_value', DETAIL = format('The value is %s.', value);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_invalid IS 'Raises 22023.';

CREATE FUNCTION queue_internal.raise_too_heavy(weight integer, queue text, kind text, most integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "weight" must not be greater than the "%" of the queue', kind
        USING ERRCODE = 'invalid_parameter_value',
              DETAIL = format('The weight is %s, and "%s" of queue "%s" is %s.', weight, kind, queue, most),
              HINT = format('Use a smaller weight, or raise the option "%s" with queue.configure().', kind);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_too_heavy IS 'Raises 22023.';

CREATE FUNCTION queue_internal.raise_too_large(argument text, maximum text, value text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "%" is larger than %', argument, maximum
        USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_too_large IS 'Raises 54000.';

-- Drivers that send a list without a type, such as psycopg, call the function for one queue.
CREATE FUNCTION queue_internal.list_hint(queue text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue LIKE '{%}' THEN
        RETURN 'The name looks like a list of queues. Cast the argument to text[], which queue.claim() and queue.wait() '
               'accept.';
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.list_hint IS
    'Returns a hint if the name of a queue may be meant as an array of names, else null.';

CREATE FUNCTION queue_internal.raise_denied(kind text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'permission denied for %', CASE WHEN queue IS NULL THEN 'all queues' ELSE format('queue "%s"', queue) END
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = format('Role %I does not have the right of %s %s %s.', queue_internal.caller(),
                              CASE kind WHEN 'operator' THEN 'an' ELSE 'a' END, kind,
                              CASE WHEN queue IS NULL THEN 'for all queues' ELSE 'for the queue' END),
              HINT = coalesce(
                  queue_internal.list_hint(queue),
                  format('The owner of the extension can grant it with SELECT queue.grant_%s(%L%s).', kind,
                         queue_internal.caller(), CASE WHEN queue IS NULL THEN '' ELSE format(', %L', queue) END));
END
$$;
COMMENT ON FUNCTION queue_internal.raise_denied IS 'Raises 42501.';

CREATE FUNCTION queue_internal.raise_unknown_queue(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'queue "%" does not exist', name
        USING ERRCODE = 'QX002',
              HINT = coalesce(queue_internal.list_hint(name), format('Create it with SELECT queue.create(%L).', name));
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_queue IS 'Raises QX002.';

CREATE FUNCTION queue_internal.raise_unknown_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'schedule "%" does not exist', name
        USING ERRCODE = 'undefined_object',
              HINT = format('Create it with SELECT queue.schedule(%L, ...). Those that exist are in queue.schedules.',
                            name);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_schedule IS 'Raises 42704.';

-- Does not name the queue, because the caller may have no right on it.
CREATE FUNCTION queue_internal.raise_foreign_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'permission denied for schedule "%"', name
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = format('It belongs to a queue that role %I is not an operator of.', queue_internal.caller()),
              HINT = 'Choose another name.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_foreign_schedule IS 'Raises 42501.';

CREATE FUNCTION queue_internal.raise_unknown_task(id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'task % does not exist', id
        USING ERRCODE = 'QX003',
              HINT = 'It may be past its retention, have finished in a queue that keeps no history, or be in a queue for '
                     'which the role has no right.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_task IS 'Raises QX003.';

CREATE FUNCTION queue_internal.raise_duplicate_key(
    queue text, key text, holder bigint, expires_at timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'key "%" of queue "%" is taken', key, queue
        USING ERRCODE = 'QX004',
              DETAIL = CASE WHEN expires_at IS NULL THEN format('Task %s has it.', holder)
                            ELSE format('Task %s had it, and keeps it until %s.', holder, expires_at) END,
              HINT = 'Wait until that task has finished, cancel it, or use another key.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_duplicate_key IS 'Raises QX004.';

CREATE FUNCTION queue_internal.raise_queue_full(source queue.queues, depth bigint, more bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'queue "%" is full', source.name
        USING ERRCODE = 'QX006',
              DETAIL = format('The number of queued tasks is %s, the number of tasks to add is %s, and "max_queued" is %s.',
                              CASE WHEN depth > source.max_queued THEN 'more than ' || source.max_queued ELSE depth::text END,
                              more, source.max_queued),
              HINT = 'Push again when workers have finished some, or raise the option "max_queued" with queue.configure().';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_queue_full IS 'Raises QX006.';

CREATE FUNCTION queue_internal.raise_wrong_state(id bigint, kind text, rule text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state text := queue_internal.state_of(id, kind);
BEGIN
    IF found_state IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RAISE EXCEPTION 'task % %', id, rule
        USING ERRCODE = 'QX005', DETAIL = format('The task is %s.', found_state), HINT = hint;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_wrong_state IS 'Raises QX005, or QX003 if the caller has no such task.';

CREATE FUNCTION queue_internal.raise_lease_lost(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    live   record;
    fact   text;
    ending text := queue_internal.state_of(id, 'worker');
BEGIN
    IF ending IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    SELECT t.token, t.state INTO live FROM queue.tasks AS t WHERE t.id = raise_lease_lost.id;
    fact := CASE
        WHEN live.token IS NULL THEN format('The task is %s.', ending)
        WHEN live.token < raise_lease_lost.token THEN
            format('The last token is %s. The claim with token %s was lost in a crash or failover, or never happened.',
                   live.token, raise_lease_lost.token)
        WHEN live.state = 'running' AND live.token = raise_lease_lost.token THEN
            'The attempt has timed out, and its lease cannot be extended.'
        WHEN live.state = 'running' THEN
            format('The lease with token %s ended; the task was claimed again with token %s.',
                   raise_lease_lost.token, live.token)
        ELSE format('The lease with token %s ended; the task is %s.', raise_lease_lost.token, live.state)
    END;
    RAISE EXCEPTION 'lease on task % is no longer held', id
        USING ERRCODE = 'QX001', DETAIL = fact,
              HINT = 'Stop working on this task. ' || CASE
                  WHEN live.state = 'running' AND live.token = raise_lease_lost.token THEN 'Push such tasks with a longer timeout.'
                  WHEN live.state IN ('queued', 'waiting') THEN
                      'Claim with a longer lease, or call queue.extend() in time. A suspended task has to be claimed again.'
                  ELSE 'Claim with a longer lease, or call queue.extend() in time.' END;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_lease_lost IS 'Raises QX001, or QX003 if there is no such task.';

CREATE FUNCTION queue_internal.raise_kept(id bigint, relation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'a trigger has suppressed the deletion of task %', id
        USING ERRCODE = 'triggered_action_exception', DETAIL = format('It is still in %s.', relation),
              HINT = 'Change the trigger so that it returns OLD, or drop the trigger.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_kept IS 'Raises 09000: a trigger of the user prevented the deletion of a task.';

CREATE FUNCTION queue_internal.check_read_committed(what text, reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION '% at isolation level READ COMMITTED', what
            USING ERRCODE = 'invalid_transaction_state', DETAIL = reason, HINT = 'Run it in a transaction that begins with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_read_committed IS 'Raises 25000 at other isolation levels than READ COMMITTED.';
