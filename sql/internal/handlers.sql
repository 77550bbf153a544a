-- Handlers in the database (queue.attach): which of them the background worker runs.

CREATE FUNCTION queue_internal.is_handler(handler oid) RETURNS boolean
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.oid = handler AND p.prokind = 'f' AND NOT p.proretset AND p.prorettype = 'jsonb'::regtype
          AND p.pronargs = 1 AND p.provariadic = 0 AND p.proargtypes[0] = 'queue.claimed_task'::regtype);
END;
COMMENT ON FUNCTION queue_internal.is_handler IS
    'Whether this is a function that takes one queue.claimed_task and returns jsonb.';

CREATE FUNCTION queue_internal.handler_name(handler oid) RETURNS text
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('%I.%I(queue.claimed_task)', n.nspname, p.proname)
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid = handler;
END;
COMMENT ON FUNCTION queue_internal.handler_name IS 'Returns the name of a handler as queue.handlers has it.';

CREATE FUNCTION queue_internal.handler_named(name text) RETURNS oid
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- Not by to_regprocedure(), which raises an error if the caller lacks USAGE on the schema.
    SELECT p.oid FROM pg_proc AS p
    WHERE p.pronargs = 1 AND p.proargtypes[0] = 'queue.claimed_task'::regtype
      AND queue_internal.handler_name(p.oid) = name;
END;
COMMENT ON FUNCTION queue_internal.handler_named IS 'Returns the function with this name in queue.handlers.';

CREATE FUNCTION queue_internal.runnable_handlers()
RETURNS TABLE (queue text, handler oid, role oid, workers integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A handler may read tables whose rows the dump has not restored yet.
    IF NOT queue_internal.is_being_restored() THEN
        RETURN QUERY
        SELECT h.queue, queue_internal.handler_named(h.handler), h.role::oid, h.workers FROM queue.handlers AS h
        WHERE NOT EXISTS (SELECT FROM queue.failing_handlers AS f WHERE f.queue = h.queue)
        ORDER BY h.created_at, h.queue;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.runnable_handlers IS 'Returns the handlers that the background worker is to run.';
