-- How the rights of producers, workers and operators take effect: as privileges on the tables and
-- functions, and as one row-level policy per right on each table. Both follow the rows of
-- queue.rights, also when a dump brings those rows. Row-level security is switched on by the first
-- right that is for one queue alone; until then nobody pays for it.

CREATE FUNCTION queue_internal.grant_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM queue_internal.check_grantee(role, queue);
    INSERT INTO queue.rights (role, kind, queue)
    VALUES (quote_ident(role)::regrole, grant_right.kind, grant_right.queue)
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION queue_internal.grant_right(text, name, text) IS 'Gives a role a right.';

CREATE FUNCTION queue_internal.revoke_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM queue_internal.check_grantee(role, queue);
    DELETE FROM queue.rights AS r
    WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind
      AND r.queue IS NOT DISTINCT FROM revoke_right.queue;
END
$$;
COMMENT ON FUNCTION queue_internal.revoke_right(text, name, text) IS 'Takes a right from a role.';

CREATE FUNCTION queue_internal.rights_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM queue_internal.withdraw_right(OLD);
    ELSE
        PERFORM queue_internal.apply_right(NEW);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.rights_changed() IS 'Makes privileges and policies follow queue.rights.';

CREATE TRIGGER rights_changed AFTER INSERT OR DELETE ON queue.rights
    FOR EACH ROW EXECUTE FUNCTION queue_internal.rights_changed();
COMMENT ON TRIGGER rights_changed ON queue.rights IS 'Makes privileges and policies follow the table.';

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
            LOCK TABLE queue.queues, queue.tasks, queue.history, queue.dead_letters, queue.schedules,
                queue.bindings
                IN ACCESS EXCLUSIVE MODE NOWAIT;
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
    target    record;
    condition text := 'true';
BEGIN
    PERFORM queue_internal.lock_guarded_tables();
    FOR target IN SELECT * FROM queue_internal.guarded_tables() LOOP
        IF given.queue IS NOT NULL THEN
            condition := format('%I = %L', target.queue_column, given.queue);
            EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', target.name);
        END IF;
        EXECUTE format('CREATE POLICY %I ON queue.%I TO %s USING (%s) WITH CHECK (%s)',
                       queue_internal.policy_name(given), target.name, given.role, condition, condition);
    END LOOP;
    PERFORM queue_internal.apply_privileges(given.kind, given.role);
END
$$;
COMMENT ON FUNCTION queue_internal.apply_right(queue.rights) IS
    'Makes the policies of a right and gives its privileges.';

CREATE FUNCTION queue_internal.withdraw_right(taken queue.rights) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target record;
    kept   text;
BEGIN
    -- Of a role that is gone, nothing is left either.
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = taken.role) THEN
        RETURN;
    END IF;
    PERFORM queue_internal.lock_guarded_tables();
    FOR target IN SELECT * FROM queue_internal.guarded_tables() LOOP
        EXECUTE format('DROP POLICY %I ON queue.%I', queue_internal.policy_name(taken), target.name);
    END LOOP;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA queue, queue_internal FROM %s', taken.role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA queue FROM %s', taken.role);
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

CREATE FUNCTION queue_internal.check_grantee(role name, queue text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('role', role::text);
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role) THEN
        RAISE EXCEPTION 'role "%" does not exist', role
            USING ERRCODE = 'undefined_object', HINT = format('Create it with CREATE ROLE %I.', role);
    END IF;
    IF queue IS NOT NULL THEN
        PERFORM queue_internal.open_queue(queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_grantee(name, text) IS
    'Checks the role and the queue of a right.';

CREATE FUNCTION queue_internal.guarded_tables(OUT name text, OUT queue_column text) RETURNS SETOF record
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    VALUES ('queues', 'name'), ('tasks', 'queue'), ('history', 'queue'), ('dead_letters', 'queue'),
           ('schedules', 'queue'), ('bindings', 'queue');
END;
COMMENT ON FUNCTION queue_internal.guarded_tables() IS
    'The tables that row-level policies guard, with the column that names the queue.';

-- By OID, because a role can be renamed.
CREATE FUNCTION queue_internal.policy_name(of queue.rights) RETURNS name
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN concat_ws(' ', (of).kind, (of).role::oid, md5((of).queue))::name;
COMMENT ON FUNCTION queue_internal.policy_name(queue.rights) IS 'The name of the policies of a right.';

-- The internal functions run with the rights of their caller, so they may be given to everybody
-- who may call any function at all.
CREATE FUNCTION queue_internal.apply_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
BEGIN
    FOREACH privilege IN ARRAY ARRAY[
        'USAGE ON SCHEMA queue, queue_internal',
        'EXECUTE ON ALL ROUTINES IN SCHEMA queue_internal',
        'EXECUTE ON FUNCTION queue.channel, queue.engine_stats',
        'SELECT ON queue.queues',
        'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queue_internal'
    ] || CASE kind
        WHEN 'producer' THEN ARRAY[
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, state),'
            'UPDATE (payload, headers, priority, run_at, updated_at, gate),'
            'SELECT (id, queue, state, run_at, group_key, gate) ON queue.tasks',
            'SELECT (id, queue) ON queue.history, queue.dead_letters',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'SELECT ON queue.bindings',
            'EXECUTE ON FUNCTION queue.push, queue.push_many, queue.publish'
        ]
        WHEN 'worker' THEN ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'SELECT, UPDATE, DELETE ON queue.tasks',
            'INSERT, SELECT (id, state, queue) ON queue.history',
            'INSERT, SELECT (id, queue) ON queue.dead_letters',
            'EXECUTE ON FUNCTION queue.claim(interval, text, integer, text),'
            'queue.claim(interval, text[], integer, text), queue.complete, queue.complete_many,'
            'queue.complete_and_claim, queue.fail, queue.release, queue.extend, queue.extend_many,'
            'queue.cancelled',
            'EXECUTE ON PROCEDURE queue.wait(text, interval, boolean), queue.wait(text[], interval, boolean)'
        ]
        ELSE ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queue',
            'USAGE, SELECT ON SEQUENCE queue.tasks_id_seq',
            'EXECUTE ON ALL ROUTINES IN SCHEMA queue'
        ]
    END LOOP
        EXECUTE format('GRANT %s TO %s', privilege, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_privileges(text, regrole) IS
    'Gives a role the privileges that a right needs.';
