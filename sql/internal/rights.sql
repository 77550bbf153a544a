-- How the rights of producers, workers and operators take effect: as privileges on the tables and
-- functions, and as one row-level policies on each table. Both follow the rows of
-- queue.rights, also when a dump brings those rows. Row-level security is switched on by the first
-- right that is for one queue alone, which leaves a row in queue_internal.guarded; until then nobody
-- pays for it. What the policies say of each table stands in guards().

CREATE FUNCTION queue_internal.grant_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM queue_internal.check_grantee(role);
    IF queue IS NOT NULL THEN
        PERFORM queue_internal.open_queue(queue);
    END IF;
    INSERT INTO queue.rights (role, kind, queue)
    VALUES (quote_ident(role)::regrole, grant_right.kind, grant_right.queue)
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION queue_internal.grant_right(text, name, text) IS 'Gives a role a right.';

CREATE FUNCTION queue_internal.revoke_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM queue_internal.check_grantee(role);
    DELETE FROM queue.rights AS r
    WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind
      AND r.queue IS NOT DISTINCT FROM revoke_right.queue;
    -- A right may be older than its queue, which was dropped.
    IF NOT FOUND AND queue IS NOT NULL THEN
        PERFORM queue_internal.open_queue(queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.revoke_right(text, name, text) IS 'Takes a right from a role.';

CREATE FUNCTION queue_internal.rights_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM queue_internal.withdraw_right(OLD);
    ELSIF EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = NEW.role) THEN
        PERFORM queue_internal.apply_right(NEW);
    ELSE
        -- From a dump: without this one, the others would not be restored either.
        RAISE WARNING 'a right is left out, because its role % does not exist', NEW.role;
        DELETE FROM queue.rights AS r WHERE r.role = NEW.role;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.rights_changed() IS 'Makes privileges and policies follow queue.rights.';

CREATE TRIGGER rights_changed AFTER INSERT OR DELETE ON queue.rights
    FOR EACH ROW EXECUTE FUNCTION queue_internal.rights_changed();
COMMENT ON TRIGGER rights_changed ON queue.rights IS 'Makes privileges and policies follow the table.';

CREATE FUNCTION queue_internal.guard() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    guarded text;
BEGIN
    PERFORM queue_internal.lock_guarded_tables();
    FOR guarded IN SELECT DISTINCT g.relation FROM queue_internal.guards(NULL) AS g LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', guarded);
    END LOOP;
    -- One row is enough, wherever it comes from.
    RETURN CASE WHEN NOT EXISTS (SELECT FROM queue_internal.guarded) THEN NEW END;
END
$$;
COMMENT ON FUNCTION queue_internal.guard() IS 'Switches row-level security on.';

CREATE TRIGGER guard BEFORE INSERT ON queue_internal.guarded
    FOR EACH ROW EXECUTE FUNCTION queue_internal.guard();
COMMENT ON TRIGGER guard ON queue_internal.guarded IS 'Switches row-level security on.';

-- All the tables or none of them, again and again until the lock_timeout is over: who waits for one
-- table while he holds another can run into a deadlock with any verb.
CREATE FUNCTION queue_internal.lock_guarded_tables() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    patience CONSTANT interval := current_setting('lock_timeout')::interval;
    started  CONSTANT timestamptz := clock_timestamp();
BEGIN
    LOOP
        BEGIN
            EXECUTE (SELECT format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT',
                                   string_agg(DISTINCT g.relation, ', '))
                     FROM queue_internal.guards(NULL) AS g);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF patience > '0' AND clock_timestamp() > started + patience THEN
                RAISE EXCEPTION 'the tables of queue_ext are busy'
                    USING ERRCODE = 'lock_not_available',
                          HINT = 'Try again when no long transaction is working with them.';
            END IF;
        END;
        PERFORM pg_sleep(0.02);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_guarded_tables() IS
    'Locks the tables that row-level policies guard, without ever waiting for one while holding another.';

CREATE FUNCTION queue_internal.apply_right(given queue.rights) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    guard  record;
    number bigint;
BEGIN
    PERFORM queue_internal.lock_guarded_tables();
    IF given.queue IS NOT NULL THEN
        INSERT INTO queue_internal.guarded DEFAULT VALUES;
    END IF;
    FOR guard IN SELECT * FROM queue_internal.guards(given.queue) LOOP
        number := given.role::oid;
        WHILE EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = guard.relation::regclass
                      AND p.polname = queue_internal.policy_name(given, guard.command, number)) LOOP
            number := number + 1;
        END LOOP;
        EXECUTE format('CREATE POLICY %I ON %s FOR %s TO %s',
                       queue_internal.policy_name(given, guard.command, number), guard.relation, guard.command,
                       given.role)
                || coalesce(' USING (' || guard.visible || ')', '')
                || coalesce(' WITH CHECK (' || guard.written || ')', '');
    END LOOP;
    PERFORM queue_internal.apply_privileges(given.kind, given.role);
END
$$;
COMMENT ON FUNCTION queue_internal.apply_right(queue.rights) IS
    'Makes the policies of a right and gives its privileges.';

CREATE FUNCTION queue_internal.withdraw_right(taken queue.rights) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    guard  record;
    policy name;
    kept   text;
BEGIN
    -- Of a role that is gone, nothing is left either.
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = taken.role) THEN
        RETURN;
    END IF;
    PERFORM queue_internal.lock_guarded_tables();
    FOR guard IN SELECT * FROM queue_internal.guards(taken.queue) LOOP
        SELECT p.polname INTO policy FROM pg_policy AS p
        WHERE p.polrelid = guard.relation::regclass AND p.polroles = ARRAY[taken.role::oid]
          AND regexp_replace(p.polname, ' \d+', ' 0') = queue_internal.policy_name(taken, guard.command, 0);
        -- After DROP OWNED BY the role.
        CONTINUE WHEN policy IS NULL;
        EXECUTE format('DROP POLICY %I ON %s', policy, guard.relation);
    END LOOP;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA queue, queue_internal FROM %s', taken.role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA queue, queue_internal FROM %s', taken.role);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM %s', taken.role);
    EXECUTE format('REVOKE ALL ON TYPE queue.claimed_task FROM %s', taken.role);
    EXECUTE format('REVOKE ALL ON SCHEMA queue, queue_internal FROM %s', taken.role);
    FOR kept IN SELECT DISTINCT r.kind FROM queue.rights AS r WHERE r.role = taken.role LOOP
        PERFORM queue_internal.apply_privileges(kept, taken.role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.withdraw_right(queue.rights) IS
    'Drops the policies of a right and takes its privileges back.';

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
COMMENT ON FUNCTION queue_internal.check_grantee(name) IS 'Checks the role of a right.';

-- What a right on the queue lets its role see and write, null meaning all queues: what stands in the
-- policies of its commands as USING and as WITH CHECK.
--
-- Two tables have to do with two queues at a time. A dependency is of the task that waits, and says so
-- in "queue"; but whoever ends its predecessor has to find it, and to leave a signal in the other's
-- queue. So it may be read from both sides, and a signal may go to a foreign queue if there is such a
-- dependency that the role may see. A dependency on a task that the role cannot see in that queue is
-- refused, or it would tell when that task ends; and so is one of a hidden task, which could be ended
-- by way of it.
--
-- Why scalar subqueries: EXISTS may be answered by reading a whole table once, in a plan that was made while it was
-- small.
CREATE FUNCTION queue_internal.guards(
    queue text, OUT relation text, OUT command text, OUT visible text, OUT written text)
RETURNS SETOF record
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    every   CONSTANT boolean := queue IS NULL;
    own     CONSTANT text := CASE WHEN every THEN 'true' ELSE format('queue = %L', queue) END;
    between CONSTANT text :=
        CASE WHEN every THEN 'true' ELSE format('queue = %1$L OR predecessor_queue = %1$L', queue) END;
    linked  CONSTANT text := CASE WHEN every THEN 'true' ELSE own
        || ' AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = task_id AND t.queue = dependencies.queue) IS NOT NULL'
        || (SELECT format(' AND (%s)', string_agg(format(
                '(SELECT p.id FROM queue.%s AS p'
                ' WHERE p.id = predecessor_id AND p.queue = predecessor_queue LIMIT 1) IS NOT NULL',
                place.name), ' OR ' ORDER BY place.number))
            FROM unnest(ARRAY['tasks', 'dead_letters', 'history']) WITH ORDINALITY AS place (name, number)) END;
    told    CONSTANT text := CASE WHEN every THEN 'true' ELSE own
        || ' OR (SELECT d.task_id FROM queue_internal.dependencies AS d WHERE d.predecessor_id = signals.predecessor_id'
           ' AND d.task_id = signals.task_id AND d.queue = signals.queue) IS NOT NULL' END;
BEGIN
    RETURN QUERY VALUES
        ('queue.queues', 'ALL', CASE WHEN every THEN 'true' ELSE format('name = %L', queue) END, NULL),
        ('queue.tasks', 'ALL', own, NULL),
        ('queue.history', 'ALL', own, NULL),
        ('queue.dead_letters', 'ALL', own, NULL),
        ('queue.schedules', 'ALL', own, NULL),
        ('queue.bindings', 'ALL', own, NULL),
        ('queue_internal.keys', 'ALL', own, NULL),
        ('queue_internal.slots', 'ALL', own, NULL),
        ('queue_internal.tokens', 'ALL', own, NULL),
        ('queue_internal.dependencies', 'SELECT', between, NULL),
        ('queue_internal.dependencies', 'INSERT', NULL, linked),
        ('queue_internal.dependencies', 'UPDATE', between, NULL),
        ('queue_internal.dependencies', 'DELETE', own, NULL),
        ('queue_internal.signals', 'ALL', own, told);
END
$$;
COMMENT ON FUNCTION queue_internal.guards(text) IS
    'What the row-level policies of a right say, for each table that they guard.';

-- Where rights are guarded, a finished task or a dead letter can only be written about a live task of
-- that queue, which the role can see: by the statement that ends it, or by somebody who lies about a
-- task of his own. Nobody can write about a task of another queue, or it could not be ended any more:
-- ids are one series. Not for the owner, to whom no policy applies.
CREATE POLICY of_a_task ON queue.history AS RESTRICTIVE FOR INSERT WITH CHECK (
    (SELECT t.id FROM queue.tasks AS t WHERE t.id = history.id AND t.queue = history.queue) IS NOT NULL);
COMMENT ON POLICY of_a_task ON queue.history IS 'Nobody can write about a task that is not his.';
CREATE POLICY of_a_task ON queue.dead_letters AS RESTRICTIVE FOR INSERT WITH CHECK (
    (SELECT t.id FROM queue.tasks AS t WHERE t.id = dead_letters.id AND t.queue = dead_letters.queue) IS NOT NULL);
COMMENT ON POLICY of_a_task ON queue.dead_letters IS 'Nobody can write about a task that is not his.';

-- The number is the role's OID, because a role can be renamed; or another one, where that is taken: a dump that
-- brings policies along brings those of roles that had other OIDs.
CREATE FUNCTION queue_internal.policy_name(of queue.rights, command text, number bigint) RETURNS name
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN concat_ws(' ', (of).kind, number, md5((of).queue), nullif(lower(command), 'all'))::name;
COMMENT ON FUNCTION queue_internal.policy_name(queue.rights, text, bigint) IS
    'The name of the policies of a right for a command.';

CREATE FUNCTION queue_internal.extension_of(relation oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.refobjid FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = relation AND d.deptype = 'e';
END;
COMMENT ON FUNCTION queue_internal.extension_of(oid) IS 'The extension that a table or view belongs to, if any.';

-- The internal functions run with the rights of their caller, so they may be given to everybody who may
-- call any function at all. But not those of the triggers: on a table of his own, whose columns are
-- others, somebody could have them read what is no column at all.
--
-- Nobody gets a right on a partition of the history, which no policy guards, nor on queue.rights: a dump
-- would bring back what was written there.
CREATE FUNCTION queue_internal.apply_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    internal  CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.prorettype <> 'trigger'::regtype);
    verbs     CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue'::regnamespace AND p.proname !~ '^(grant_|revoke_|maintain$)');
    tables    CONSTANT text := (
        SELECT string_agg(DISTINCT g.relation, ', ') FROM queue_internal.guards(NULL) AS g
        WHERE g.relation <> 'queue_internal.dependencies');
    -- Not what somebody else has put into the schema, as far as an extension tells one from the other.
    views     CONSTANT text := (
        SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class AS c
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v'
          AND queue_internal.extension_of(c.oid) IS NOT DISTINCT FROM queue_internal.extension_of('queue.tasks'::regclass));
    privilege text;
BEGIN
    FOREACH privilege IN ARRAY ARRAY[
        'USAGE ON SCHEMA queue, queue_internal',
        'EXECUTE ON ROUTINE ' || internal,
        'EXECUTE ON FUNCTION queue.channel',
        'SELECT ON queue.queues'
    ] || CASE kind
        WHEN 'producer' THEN ARRAY[
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, state),'
            'UPDATE (payload, headers, priority, run_at, updated_at, gate),'
            'SELECT (id, queue, state, run_at, group_key, gate) ON queue.tasks',
            'SELECT (id, queue) ON queue.history, queue.dead_letters',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'SELECT ON queue.bindings',
            'SELECT, INSERT, UPDATE ON queue_internal.keys',
            'SELECT, INSERT ON queue_internal.dependencies',
            'INSERT ON queue_internal.signals',
            'EXECUTE ON FUNCTION queue.push, queue.push_many, queue.publish'
        ]
        WHEN 'worker' THEN ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'SELECT, DELETE, UPDATE (state, run_at, attempt, token, gate, lease_until, worker, claimed_at,'
            ' updated_at, progress, errors) ON queue.tasks',
            'INSERT, SELECT (id, state, queue) ON queue.history',
            'INSERT, SELECT (id, queue) ON queue.dead_letters',
            'SELECT, UPDATE, DELETE ON queue_internal.keys',
            'SELECT, DELETE, UPDATE (predecessor_queue) ON queue_internal.dependencies',
            'SELECT, INSERT, UPDATE, DELETE ON queue_internal.signals',
            'SELECT ON SEQUENCE queue_internal.signals_id_seq',
            'SELECT, UPDATE ON queue_internal.slots, queue_internal.tokens',
            'EXECUTE ON FUNCTION queue.claim(interval, text, integer, text),'
            'queue.claim(interval, text[], integer, text), queue.complete, queue.complete_many,'
            'queue.complete_and_claim, queue.fail, queue.release, queue.extend, queue.extend_many,'
            'queue.cancelled',
            'EXECUTE ON PROCEDURE queue.wait(text, interval, boolean), queue.wait(text[], interval, boolean)'
        ]
        ELSE ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'SELECT, INSERT, UPDATE, DELETE ON ' || tables,
            'SELECT ON ' || views,
            'SELECT, INSERT, DELETE, UPDATE (predecessor_queue) ON queue_internal.dependencies',
            'USAGE, SELECT ON SEQUENCE queue.tasks_id_seq',
            'SELECT ON SEQUENCE queue_internal.signals_id_seq',
            'EXECUTE ON ROUTINE ' || verbs
        ]
    END LOOP
        EXECUTE format('GRANT %s TO %s', privilege, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_privileges(text, regrole) IS
    'Gives a role the privileges that a right needs.';
