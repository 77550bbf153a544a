-- Rights: which role may call which function, for which queue.
--
--   A right is a row of queue.rights: a role, a kind, and a queue, or null for all queues. Every public function checks
--   that its caller has the right that it needs for the queue (check_right, open_queue), and then works with the rights
--   of the extension's owner. So no role needs privileges on tables, except that producers may INSERT into queue.tasks
--   and operators may SELECT.
--
--   The caller is the role that called the function (queue_internal.caller()). It has the rights of every role whose
--   privileges it inherits. The owner of the extension, its members and superusers have all rights. An operator of a
--   queue has the rights of a producer and a worker there.
--
--   has_right() and queues_with_right() are in engine.sql: the library caches the rights of a session's role.

-- Null stands for all queues.
CREATE FUNCTION queue_internal.check_right(kind text, queue text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT queue_internal.has_right(kind, queue) THEN
        PERFORM queue_internal.raise_denied(kind, queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_right IS
    'Raises 42501 unless the caller of the public function has this kind of right on the queue.';

CREATE FUNCTION queue_internal.grant_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM queue_internal.check_grantee(role);
    IF queue IS NOT NULL THEN
        PERFORM queue_internal.open_queue(queue, 'operator');
    END IF;
    FOR tries IN REVERSE 10 .. 0 LOOP
        BEGIN
            INSERT INTO queue.rights (role, kind, queue)
            VALUES (quote_ident(role)::regrole, grant_right.kind, grant_right.queue)
            ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                -- The role may lack the privileges, in a database that was restored without them.
                PERFORM queue_internal.apply_privileges(grant_right.kind, quote_ident(role)::regrole);
            END IF;
            EXIT;
        EXCEPTION WHEN internal_error THEN
            -- "tuple concurrently updated": another session has changed privileges on the same objects.
            IF tries = 0 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.grant_right IS 'Grants a right to a role.';

CREATE FUNCTION queue_internal.revoke_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    had boolean;
BEGIN
    PERFORM queue_internal.check_grantee(role);
    -- The queue need not exist: a right can outlive it.
    IF queue IS NOT NULL THEN
        PERFORM queue_internal.check_name('queue', queue);
    END IF;
    FOR tries IN REVERSE 10 .. 0 LOOP
        BEGIN
            DELETE FROM queue.rights AS r
            WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind
              AND r.queue IS NOT DISTINCT FROM revoke_right.queue;
            had := FOUND;
            EXIT;
        EXCEPTION WHEN internal_error THEN
            IF tries = 0 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    IF NOT had THEN
        RAISE NOTICE 'role % had no such right', quote_ident(role) USING HINT = 'The rights that it has are in queue.rights.';
    ELSIF EXISTS (SELECT FROM queue.rights AS r
                  WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind AND r.queue IS NULL) THEN
        RAISE NOTICE 'role % still has the right for all queues', quote_ident(role)
            USING HINT = format('SELECT queue.revoke_%s(%L) revokes it.', kind, role);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.revoke_right IS 'Revokes a right from a role.';

CREATE FUNCTION queue_internal.check_grantee(role name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('role', role::text);
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role) THEN
        RAISE EXCEPTION 'role "%" does not exist', role
            USING ERRCODE = 'undefined_object', HINT = format('Create it with CREATE ROLE %I.', role);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_grantee IS 'Checks the role that a right is granted to or revoked from.';

-- A trigger, so that a restored dump of queue.rights also grants the privileges.
CREATE FUNCTION queue_internal.rights_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.announce_rights();
    IF TG_OP <> 'INSERT' THEN
        PERFORM queue_internal.withdraw_privileges(OLD.kind, OLD.role);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN NULL;
    ELSIF EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = NEW.role) THEN
        PERFORM queue_internal.apply_privileges(NEW.kind, NEW.role);
    ELSE
        -- In a dump; an error would keep the other rights from being restored.
        RAISE WARNING 'skipped a right, because its role % does not exist', NEW.role;
        DELETE FROM queue.rights AS r WHERE r.role = NEW.role;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.rights_changed IS 'Makes the privileges of roles follow queue.rights.';

CREATE TRIGGER rights_changed AFTER INSERT OR UPDATE OR DELETE ON queue.rights
    FOR EACH ROW EXECUTE FUNCTION queue_internal.rights_changed();
COMMENT ON TRIGGER rights_changed ON queue.rights IS 'Makes the privileges of roles follow the table.';

-- The privileges that each kind of right needs: EXECUTE on the public functions, and on the internal functions that
-- procedures call as their caller, because a procedure that commits cannot run as the owner.
CREATE FUNCTION queue_internal.privileges_of(kind text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    verbs     CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue'::regnamespace AND p.proname !~ '^(grant_|revoke_|attach$|detach$|maintain$|set$)');
    -- Leaves out objects that others have created in the schema, as far as extension membership shows them.
    views     CONSTANT text := (
        SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class AS c
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v'
          AND queue_internal.extension_of(c.oid) IS NOT DISTINCT FROM queue_internal.extension_of('queue.tasks'::regclass));
    waiting   CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname = ANY (
            '{check_wait, first_ready, first_pause, next_pause, moment_of_call, check_wait_result, outcome, is_finished, try_commit,
              may_commit, wait_deadline}'));
    bulk      CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname IN ('in_batches', 'next_batch'));
BEGIN
    RETURN ARRAY['USAGE ON SCHEMA queue'] || CASE kind
        WHEN 'monitor' THEN ARRAY[
            'SELECT ON queue.stats, queue.workers, queue.batches, queue.dependencies, queue.failing_schedules, '
            'queue.due_schedules, queue.failing_handlers, queue.delayed_events',
            'EXECUTE ON FUNCTION queue.engine_stats, queue.health'
        ]
        WHEN 'producer' THEN ARRAY[
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, '
            'lease, timeout, start_by, weight) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'EXECUTE ON FUNCTION queue.channel, queue.push, queue.try_push, queue.push_many, queue.push_tasks, queue.publish, '
            'queue.create_batch, queue.seal_batch, queue.emit'
        ]
        WHEN 'worker' THEN ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'USAGE ON SCHEMA queue_internal',
            'EXECUTE ON ROUTINE ' || waiting,
            'EXECUTE ON FUNCTION queue.channel, queue.claim(interval, text, integer, text),'
            'queue.claim(interval, text[], integer, text), queue.complete, queue.complete_many,'
            'queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text, integer),'
            'queue.complete_and_claim(bigint, bigint, jsonb, interval, text[], text, integer),'
            'queue.complete_many_and_claim, queue.fail, queue.fail_many, queue.release, queue.release_many, queue.extend,'
            'queue.extend_many, queue.assert_lease, queue.confirm_cancel, queue.step, queue.steps,'
            'queue.sleep(bigint, bigint, timestamptz), queue.sleep(bigint, bigint, text, interval), queue.await_event,'
            'queue.await_task',
            'EXECUTE ON PROCEDURE queue.wait(text, interval, boolean, text), queue.wait(text[], interval, boolean, text), queue.take'
        ]
        ELSE ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, '
            'lease, timeout, start_by, weight) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'SELECT ON queue.queues, queue.tasks, queue.history, queue.dead_letters, queue.schedules, queue.bindings, '
            'queue.handlers',
            'SELECT ON ' || views,
            'USAGE ON SCHEMA queue_internal',
            'EXECUTE ON ROUTINE ' || waiting,
            'EXECUTE ON ROUTINE ' || bulk,
            'EXECUTE ON ROUTINE ' || verbs
        ]
    END;
END
$$;
COMMENT ON FUNCTION queue_internal.privileges_of IS
    'Returns the privileges that a kind of right needs, or with monitor those of pg_monitor, as GRANT names them.';

-- Nothing for the owner: its own privileges must not be revoked with a right.
CREATE FUNCTION queue_internal.apply_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
BEGIN
    IF role = queue_internal.owner() THEN
        RETURN;
    END IF;
    -- Before it may use the schemas.
    PERFORM queue_internal.close_functions();
    FOREACH privilege IN ARRAY queue_internal.privileges_of(kind) LOOP
        EXECUTE format('GRANT %s TO %s', privilege, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_privileges IS 'Grants a role the privileges that a right needs.';

CREATE FUNCTION queue_internal.withdraw_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
    kept      text;
BEGIN
    IF role = queue_internal.owner()
       -- A role that was dropped has no privileges.
       OR NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = withdraw_privileges.role) THEN
        RETURN;
    END IF;
    PERFORM queue_internal.check_read_committed(
        'rights can only be revoked', 'The snapshot may not show a right that needs some of the same privileges.');
    FOREACH privilege IN ARRAY queue_internal.privileges_of(kind) LOOP
        EXECUTE format('REVOKE %s FROM %s', privilege, role);
    END LOOP;
    FOR kept IN
        SELECT r.kind FROM queue.rights AS r WHERE r.role = withdraw_privileges.role
        UNION SELECT 'monitor' WHERE role = 'pg_monitor'::regrole
    LOOP
        PERFORM queue_internal.apply_privileges(kept, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.withdraw_privileges IS
    'Revokes the privileges that a right needed, except those that other rights of the role need.';

CREATE FUNCTION queue_internal.owner() RETURNS regrole
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.relowner::regrole FROM pg_class AS c WHERE c.oid = 'queue.tasks'::regclass;
END;
COMMENT ON FUNCTION queue_internal.owner IS 'Returns the owner of queue_ext.';

-- PostgreSQL lets every role call a new function. A dump that was restored without privileges leaves it so.
CREATE FUNCTION queue_internal.close_functions() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- In a view, a policy, the condition of a trigger or the default of a column, a function is called with the privileges of
    -- the role that reads or inserts. These answer about the rights of that role alone, and show only its queues. counted_at
    -- shows only a time.
    for_all CONSTANT text[] := '{has_right, queues_with_right, caller, counted, counted_at, count_tables, running_tasks,
                                 waiting_workers, is_handler, handler_name, handler_named, how_inserted, check_arrival, buckets}';
    changed record;
BEGIN
    FOR changed IN
        SELECT f.name, f.opens FROM (
            SELECT p.oid::regprocedure AS name,
                   p.pronamespace = 'queue_internal'::regnamespace AND p.proname = ANY (for_all) AS opens,
                   EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
                           WHERE a.grantee = 0) AS is_open
            FROM pg_proc AS p
            WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
              AND p.proowner = queue_internal.owner()
              -- Leaves out those of other extensions in the schemas.
              AND (SELECT d.refobjid FROM pg_depend AS d
                   WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
                  IS NOT DISTINCT FROM queue_internal.extension_of('queue.tasks'::regclass)) AS f
        WHERE f.opens <> f.is_open
    LOOP
        EXECUTE format(CASE WHEN changed.opens THEN 'GRANT EXECUTE ON ROUTINE %s TO PUBLIC'
                            ELSE 'REVOKE ALL ON ROUTINE %s FROM PUBLIC' END, changed.name);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.close_functions IS
    'Revokes the privileges of PUBLIC on the functions of both schemas, except on those that every role has to call.';

-- PostgreSQL lets every role use a new type, also the row type of a new table or view, for a column or an argument of its
-- own. What the role creates then depends on the table: ALTER TABLE and DROP EXTENSION are refused because of it. Calling
-- a function needs no such privilege. Also called by extend_history, because pg_dump does not save the privileges of row
-- types.
CREATE FUNCTION queue_internal.close_types() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    opened regtype;
BEGIN
    FOR opened IN
        SELECT t.oid FROM pg_type AS t
        WHERE t.typnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
          -- An array type has the privileges of its elements.
          AND t.typelem = 0
          AND t.typowner = queue_internal.owner()
          AND (t.typacl IS NULL OR EXISTS (SELECT FROM aclexplode(t.typacl) AS a WHERE a.grantee = 0))
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', opened);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.close_types IS 'Revokes the privileges of PUBLIC on the types of both schemas.';

CREATE FUNCTION queue_internal.extension_of(relation oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.refobjid FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = relation AND d.deptype = 'e';
END;
COMMENT ON FUNCTION queue_internal.extension_of IS
    'Returns the extension that a table or view belongs to, if any.';

-- Policies: which rows an operator reads and a producer inserts. The subquery is evaluated once for each statement,
-- and is null if the role has the right on all queues. With IS NULL and OR instead of coalesce, the planner would
-- expect almost no rows, and read whole tables where an index gives the first few.
DO $$
DECLARE
    allowed CONSTANT text := 'coalesce(%2$I = ANY ((SELECT queue_internal.queues_with_right(%1$L))::text[]), true)';
    shown   record;
BEGIN
    FOR shown IN
        SELECT t.name, CASE t.name WHEN 'queues' THEN 'name' ELSE 'queue' END AS queue
        FROM unnest('{queues, tasks, history, dead_letters, schedules, bindings, handlers}'::text[]) AS t (name)
    LOOP
        EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', shown.name);
        EXECUTE format('CREATE POLICY operators_read ON queue.%I FOR SELECT USING (%s)', shown.name,
                       format(allowed, 'operator', shown.queue));
        EXECUTE format('COMMENT ON POLICY operators_read ON queue.%I IS %L', shown.name,
                       'Operators read the rows of their queues.');
    END LOOP;
    EXECUTE format('CREATE POLICY producers_insert ON queue.tasks FOR INSERT WITH CHECK (%s)',
                   format(allowed, 'producer', 'queue'));
    COMMENT ON POLICY producers_insert ON queue.tasks IS 'Producers insert tasks into their queues.';
END
$$;
