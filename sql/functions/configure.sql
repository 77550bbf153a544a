-- queue.configure(name, options)
--
--   Changes the options of a queue; those not named stay, null brings back a default. They count
--   from the next claim or failure on, also for tasks that are in the queue already.
--   API:      public; an operator's
--   Options:  those of queue.create
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments and options
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.configure(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.check_options(options);
    PERFORM queue_internal.apply_options(name, options);
END
$$;
COMMENT ON FUNCTION queue.configure(text, jsonb) IS 'Changes the options of a queue.';

-- For the functions that call the queue "name".
CREATE FUNCTION queue_internal.check_queue(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.open_queue(name, 'operator');
END
$$;
COMMENT ON FUNCTION queue_internal.check_queue(text) IS 'Checks that a queue exists and that the caller is its operator.';
