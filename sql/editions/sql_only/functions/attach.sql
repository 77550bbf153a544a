-- queue.attach: without the library there are no processes that could call a handler.

CREATE FUNCTION queue.attach(queue text, handler regprocedure, role regrole, workers integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the SQL-only edition cannot run handlers'
        USING ERRCODE = 'feature_not_supported',
              DETAIL = 'Handlers run in background processes of the library, which this edition does not have.',
              HINT = 'Run a worker outside the database, or install the extension with its library.';
END
$$;
COMMENT ON FUNCTION queue.attach IS
'Always raises 0A000, because handlers in the database need the library, which the SQL-only edition does not have. Only
the owner can call it.

- queue, handler, role, workers: ignored.';
