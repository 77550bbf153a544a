-- How rows come into queue.tasks, for the triggers of the table. PostgreSQL parses the condition of a trigger for each
-- statement, so the conditions are short.
--
--   push    by push_plain, whose row needs no check. Recognized by the search_path of this function, and by a role that may
--           truncate the table: in it, the owner
--   dump    by the restore of a dump: pg_restore with several jobs loads the tables in any order and concurrently,
--           whatever foreign keys there are, while the worker runs. So a restored row must not need another one: a task
--           is not refused because its queue is missing, and its key comes with queue_internal.keys. The sweep finds
--           waiting tasks. Recognized by two settings that every dump makes before its first row, and by a role that may
--           truncate the table. A producer who makes these settings is checked like any other
--   insert  in another way
--
--   A trigger of a user may insert other rows during a push. These count as inserted.
--   Why no search_path: to see that of the statement. So each name, and each operator, is qualified.
CREATE FUNCTION queue_internal.how_inserted() RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
BEGIN
    IF path OPERATOR(pg_catalog.=) 'pg_catalog, queue_internal, queue_internal, pg_temp' AND pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.=) 0
       AND pg_catalog.has_table_privilege('queue.tasks', 'TRUNCATE') THEN
        RETURN 'push';
    ELSIF path OPERATOR(pg_catalog.=) '' AND pg_catalog.current_setting('check_function_bodies') OPERATOR(pg_catalog.=) 'off'
          AND pg_catalog.has_table_privilege('queue.tasks', 'TRUNCATE') THEN
        RETURN 'dump';
    END IF;
    RETURN 'insert';
END
$$;
COMMENT ON FUNCTION queue_internal.how_inserted IS
    'Returns how the statement came to insert into queue.tasks: push, dump or insert.';

-- Whether the trigger task_arrives applies to the row. Raises an error if a policy would refuse the row: it must not take its
-- key first, which would show whether the key is taken. Nor may it be inserted without its key through a view, where
-- the policies for the view's owner apply. The trigger itself has the rights of the owner, to whom no policy applies.
--   Why arguments: a role that inserts may not look up names in queue_internal, but the condition of the trigger has them.
CREATE FUNCTION queue_internal.check_arrival(queue text, how text, allowed boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF how OPERATOR(pg_catalog.=) 'dump' THEN
        RETURN false;
    ELSIF NOT allowed THEN
        RAISE EXCEPTION 'permission denied for queue "%"', queue
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'The role that inserts does not have the right of a producer for the queue.';
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.check_arrival IS
    'Returns whether a row that is inserted may take its key and its place in its group, or belongs to a dump.';
