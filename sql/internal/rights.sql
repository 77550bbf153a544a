-- How the rights of producers, workers and operators are kept: as privileges on the tables and
-- functions, and one row-level policy per right on each table. The policies are also the record
-- of who has which right. Row-level security is switched on by the first right that is for one
-- queue alone; until then nobody pays for it.

CREATE FUNCTION queue_internal.grant_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    target    record;
    condition text := 'true';
BEGIN
    PERFORM queue_internal.check_grantee(role, queue);
    PERFORM queue_internal.drop_policy(kind, role, queue);
    FOR target IN SELECT * FROM queue_internal.guarded_tables() LOOP
        IF queue IS NOT NULL THEN
            condition := format('%I = %L', target.queue_column, queue);
            EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', target.name);
        END IF;
        EXECUTE format('CREATE POLICY %I ON queue.%I TO %I USING (%s) WITH CHECK (%s)',
                       queue_internal.policy_name(kind, role, queue), target.name, role, condition, condition);
    END LOOP;
    PERFORM queue_internal.apply_privileges(kind, role);
END
$$;
COMMENT ON FUNCTION queue_internal.grant_right(text, name, text) IS 'Gives a role a right.';

CREATE FUNCTION queue_internal.revoke_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    target record;
    kept   text;
BEGIN
    PERFORM queue_internal.check_grantee(role, queue);
    PERFORM queue_internal.drop_policy(kind, role, queue);
    FOR target IN SELECT * FROM queue_internal.guarded_tables() LOOP
        EXECUTE format('REVOKE ALL ON queue.%I FROM %I', target.name, role);
    END LOOP;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA queue FROM %I', role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA queue FROM %I', role);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM %I', role);
    EXECUTE format('REVOKE ALL ON TYPE queue.claimed_task FROM %I', role);
    EXECUTE format('REVOKE ALL ON SCHEMA queue, queue_internal FROM %I', role);
    FOR kept IN
        SELECT DISTINCT split_part(p.policyname, ' ', 1) FROM pg_policies AS p
        WHERE p.schemaname = 'queue' AND p.tablename = 'tasks' AND p.roles = ARRAY[role]
          AND split_part(p.policyname, ' ', 1) IN ('producer', 'worker', 'operator')
    LOOP
        PERFORM queue_internal.apply_privileges(kept, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.revoke_right(text, name, text) IS 'Takes a right from a role.';

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
    VALUES ('queues', 'name'), ('tasks', 'queue'), ('history', 'queue'), ('dead_letters', 'queue');
END;
COMMENT ON FUNCTION queue_internal.guarded_tables() IS
    'The tables that row-level policies guard, with the column that names the queue.';

CREATE FUNCTION queue_internal.policy_name(kind text, role name, queue text) RETURNS name
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT CASE WHEN octet_length(p.name) < 64 THEN p.name ELSE kind || ' ' || md5(p.name) END
        FROM (SELECT concat_ws(' ', kind, role, quote_literal(queue))) AS p (name))::name;
COMMENT ON FUNCTION queue_internal.policy_name(text, name, text) IS 'The name of the policy of a right.';

CREATE FUNCTION queue_internal.drop_policy(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target record;
    policy name := queue_internal.policy_name(kind, role, queue);
BEGIN
    FOR target IN SELECT * FROM queue_internal.guarded_tables() LOOP
        IF EXISTS (SELECT FROM pg_policies AS p
                   WHERE p.schemaname = 'queue' AND p.tablename = target.name AND p.policyname = policy) THEN
            EXECUTE format('DROP POLICY %I ON queue.%I', policy, target.name);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.drop_policy(text, name, text) IS 'Drops the policies of a right.';

-- The internal functions run with the rights of their caller, so they may be given to everybody
-- who may call any function at all.
CREATE FUNCTION queue_internal.apply_privileges(kind text, role name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
BEGIN
    FOREACH privilege IN ARRAY ARRAY[
        'USAGE ON SCHEMA queue, queue_internal',
        'EXECUTE ON ALL FUNCTIONS IN SCHEMA queue_internal',
        'EXECUTE ON FUNCTION queue.channel, queue.engine_stats',
        'SELECT ON queue.queues'
    ] || CASE kind
        WHEN 'producer' THEN ARRAY[
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key),'
            'SELECT (id) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'EXECUTE ON FUNCTION queue.push, queue.push_many'
        ]
        WHEN 'worker' THEN ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'SELECT, UPDATE, DELETE ON queue.tasks',
            'INSERT, SELECT (id, state, queue) ON queue.history',
            'INSERT, SELECT (id, queue) ON queue.dead_letters',
            'EXECUTE ON FUNCTION queue.claim(interval, text, integer, text),'
            'queue.claim(interval, text[], integer, text), queue.complete, queue.complete_many,'
            'queue.complete_and_claim, queue.fail, queue.release, queue.extend, queue.extend_many,'
            'queue.cancelled'
        ]
        ELSE ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queue',
            'USAGE, SELECT ON SEQUENCE queue.tasks_id_seq',
            'EXECUTE ON ALL ROUTINES IN SCHEMA queue'
        ]
    END LOOP
        EXECUTE format('GRANT %s TO %I', privilege, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_privileges(text, name) IS
    'Gives a role the privileges that a right needs.';
