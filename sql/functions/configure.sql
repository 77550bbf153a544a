-- queue.configure
--
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.configure(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.check_options(options);
    PERFORM queue_internal.apply_options(name, options, false);
END
$$;
COMMENT ON FUNCTION queue.configure IS
'Changes options of a queue. They apply from the next claim or failure on, also to tasks that are in the queue already.
Needs the operator''s right on the queue.

- name: name of the queue.
- options: a JSON object with options of queue.create. Options that are not named stay as they are; null restores the
  default.

A change of max_running or of rate_limit waits for open claims that count against it.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 55P03: such claims were open for longer than
lock_timeout. 25000: a change for groups, outside isolation level READ COMMITTED. 22004, 22023 or 54000: an argument or
an option is null, invalid or too large.';

-- For functions whose argument for the queue is called "name".
CREATE FUNCTION queue_internal.check_queue(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.open_queue(name, 'operator');
END
$$;
COMMENT ON FUNCTION queue_internal.check_queue IS
    'Checks that a queue exists and that the caller has the operator''s right on it.';
