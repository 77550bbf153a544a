\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- CREATE EXTENSION creates no role and grants nothing.
CREATE ROLE nobody_special; CREATE ROLE pusher; CREATE ROLE doer; CREATE ROLE boss; CREATE ROLE mail_pusher; CREATE ROLE mail_doer; CREATE ROLE mail_boss;
SELECT queue.create('mail');
CREATE FUNCTION pg_temp.can(role name, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', role);
    said := split_part(pg_temp.refused(statement), E'\n', 1);
    RESET ROLE;
    RETURN replace(said, 'not refused', 'yes');
END
$$;
SELECT pg_temp.can('nobody_special', $$SELECT queue.push('default')$$);
SELECT pg_temp.can('nobody_special', 'SELECT * FROM queue.tasks');

SELECT queue.grant_producer('pusher'), queue.grant_worker('doer'), queue.grant_operator('boss');
-- A producer can push, and cannot read any task.
SELECT pg_temp.can('pusher', $$SELECT queue.push('default', '{"a": 1}')$$);
SELECT pg_temp.can('pusher', $$SELECT queue.push_many('mail', '{}')$$);
SELECT pg_temp.can('pusher', $$INSERT INTO queue.tasks (queue, payload) VALUES ('mail', '{}')$$);
SELECT pg_temp.can('pusher', $$INSERT INTO queue.tasks (queue, token) VALUES ('mail', 7)$$);
SELECT pg_temp.can('pusher', $$SELECT payload FROM queue.tasks$$);
SELECT pg_temp.can('pusher', $$SELECT queue.claim()$$);
SELECT pg_temp.can('pusher', $$CALL queue.wait()$$);
SELECT pg_temp.can('pusher', $$SELECT queue.cancel(1)$$);
SELECT queue.bind('a.#', 'mail'), queue.bind('a.#', 'default');
SELECT pg_temp.can('pusher', $$SELECT queue.publish('a.b')$$);
SELECT pg_temp.can('pusher', $$SELECT queue.bind('b', 'mail')$$);
SELECT pg_temp.can('pusher', $$DELETE FROM queue.bindings$$);
SELECT pg_temp.can('pusher', $$CALL queue.cancel_where('{"all": true}')$$);
-- A worker can claim and finish tasks.
SET ROLE doer;
CALL queue.wait();
SELECT id, token, payload FROM queue.claim('1 minute') \gset
SELECT cancel_requested FROM queue.extend(:id, :token, '1 minute', '1');
SELECT queue.complete(:id, :token, '"ok"');
SELECT sqlstate FROM (SELECT left(pg_temp.refused(format('SELECT queue.complete(%s, %s)', :id, :token)), 5)) AS s (sqlstate);
SELECT id, token FROM queue.claim('1 minute', 'mail') \gset
SELECT queue.fail(:id, :token, 'x', permanent => true);
RESET ROLE;
SELECT pg_temp.can('doer', $$SELECT queue.push('default')$$);
SELECT pg_temp.can('doer', $$SELECT queue.pause('mail')$$);
SELECT pg_temp.can('doer', $$CALL queue.purge_where('{"all": true}')$$);
SELECT pg_temp.can('doer', $$SELECT payload FROM queue.history$$);
SELECT pg_temp.can('doer', $$SELECT queue.run_schedules()$$);
SELECT pg_temp.can('doer', $$SELECT queue_internal.next_batch('cancel', '{"all": true}', false, 10, NULL, NULL, 0, NULL, NULL, NULL)$$);
SELECT pg_temp.can('pusher', $$SELECT queue.schedule('x', '@daily', 'mail')$$);
-- An operator can do all that and manage queues, but cannot grant rights.
SET ROLE boss;
SELECT queue.create('new'), queue.pause('new'), queue.configure('new', '{"max_attempts": 3}'), queue.drop('new');
SELECT queue.redrive('mail'), queue.reap();
SELECT queue.push('mail') AS id \gset
SELECT queue.cancel(:id);
SELECT state FROM queue.get(:id);
CALL queue.wait_result(:id);
SELECT queue.bind('b', 'mail'), queue.unbind('b', 'mail');
CALL queue.cancel_where('{"queue": "mail"}');
SELECT queue, queued FROM queue.stats ORDER BY 1;
SELECT queue.schedule('nightly', '@daily', 'default') > now() AS ahead, queue.schedule('news', '@daily', 'mail') > now() AS ahead;
SELECT name, queue FROM queue.schedules ORDER BY name;
RESET ROLE;
UPDATE queue.schedules SET next_run_at = now();
SET ROLE boss;
SELECT queue.run_schedules();
RESET ROLE;
-- It can read the tables, and change them only by calling functions.
SELECT pg_temp.can('boss', $$UPDATE queue.schedules SET queue = 'mail'$$);
SELECT pg_temp.can('boss', $$DELETE FROM queue.tasks$$);
SELECT pg_temp.can('boss', $$LOCK TABLE queue.tasks$$);
SELECT pg_temp.can('boss', $$SELECT queue.grant_worker('nobody_special')$$);

-- Rights for one queue only.
SELECT queue.grant_producer('mail_pusher', 'mail'), queue.grant_worker('mail_doer', 'mail'), queue.grant_operator('mail_boss', 'mail');
SELECT pg_temp.can('mail_pusher', $$SELECT queue.push('mail')$$);
SELECT left(pg_temp.can('mail_pusher', $$SELECT queue.push('default')$$), 5);
-- A publish reaches the queues that its caller may push to.
SET ROLE mail_pusher;
SELECT count(*) FROM queue.publish('a.b');
RESET ROLE;
SELECT queue.push('default', '"secret"') AS secret \gset
SET ROLE mail_doer;
CALL queue.wait('mail', '0');
SELECT queue FROM queue.claim('1 minute', 'mail');
CALL queue.wait('mail', '10 ms');
SELECT left(pg_temp.refused($$CALL queue.wait('default')$$), 5);
SELECT left(pg_temp.refused($$CALL queue.wait('{mail,default}'::text[])$$), 5);
SELECT left(pg_temp.refused($$SELECT queue.claim('1 minute', 'default')$$), 5);
SELECT left(pg_temp.refused(format('SELECT queue.complete(%s, 1)', :secret)), 5);
SELECT pg_temp.refused('SELECT FROM queue.tasks');
RESET ROLE;
SET ROLE mail_boss;
SELECT queue.configure('mail', '{"lease": null, "max_attempts": 7}'), queue.pause('mail'), queue.resume('mail');
SELECT left(pg_temp.refused($$SELECT queue.pause('default')$$), 5);
SELECT count(*) FROM queue.all_tasks WHERE queue <> 'mail';
-- Tables and views show only the rows of its queue.
SELECT DISTINCT queue FROM queue.tasks;
SELECT name FROM queue.queues;
SELECT queue FROM queue.stats;
SELECT name, queue FROM queue.schedules;
SELECT queue.run_schedule('news') > 0 AS by_hand;
SELECT left(pg_temp.refused(statement), 5) AS refused FROM (VALUES
    ($$SELECT queue.schedule('mine', '@daily', 'default')$$), ($$SELECT queue.schedule('nightly', '@daily', 'mail')$$),
    ($$SELECT queue.run_schedule('nightly')$$), ($$SELECT queue.unschedule('nightly')$$),
    -- Calls for all queues need the right for all queues.
    ($$SELECT queue.run_schedules()$$), ($$SELECT queue.reap()$$)) AS v (statement);
SELECT queue.unschedule('news');
SELECT queue.bind('c', 'mail');
SELECT left(pg_temp.refused($$SELECT queue.bind('c', 'default')$$), 5);
CALL queue.purge_where('{"all": true}', dry_run => true);
SELECT left(pg_temp.refused($$CALL queue.move_where('{"all": true}', 'default')$$), 5);
SELECT pg_temp.refused(format('CALL queue.wait_result(%s)', :secret));
RESET ROLE;
SELECT count(*) AS of_the_others FROM queue.tasks WHERE queue = 'default';
-- The other roles are not affected.
SELECT pg_temp.can('pusher', $$SELECT queue.push('default')$$);
SET ROLE doer;
SELECT count(*) FROM queue.claim('1 minute', ARRAY['default', 'mail'], 100);
RESET ROLE;

-- Rights do not add up: a role that may push to one queue and claim from another can do only that.
CREATE ROLE mixed;
SELECT queue.create('api'), queue.create('bank');
SELECT queue.grant_worker('mixed', 'api'), queue.grant_producer('mixed', 'bank');
SELECT queue.push('bank', '"vault"', key => 'k', group_key => 'g') AS vault \gset
SELECT queue.push('api', key => 'k', delay => '1 day') > 0 AS pushed;
SELECT id AS taken FROM queue.push('bank', '"taken"'), LATERAL queue.claim('1 hour', 'bank') AS c (id) \gset
SET ROLE mixed;
SELECT statement, split_part(pg_temp.refused(replace(statement, ':taken', :'taken')), E'\n', 1) AS refused FROM unnest(ARRAY[
    $$SELECT queue.claim('1 minute', 'bank')$$, $$SELECT queue.claim('1 minute', '{api,bank}'::text[])$$,
    $$SELECT queue.push('api')$$, $$SELECT queue.push_many('api', '{1}')$$,
    $$SELECT queue.complete(:taken, 1)$$, $$SELECT queue.fail(:taken, 1, 'x')$$, $$SELECT queue.release(:taken, 1)$$,
    $$SELECT queue.extend(:taken, 1)$$, $$SELECT queue.confirm_cancel(:taken, 1)$$,
    $$SELECT queue.step(:taken, 1, 's', '1')$$, $$SELECT queue.steps(:taken)$$, $$SELECT queue.sleep(:taken, 1, now())$$,
    $$SELECT queue.await_event(:taken, 1, 'e')$$, $$SELECT queue.await_task(:taken, 1, 1)$$, $$SELECT queue.emit('api', 'e')$$,
    $$SELECT queue.complete_and_claim(:taken, 1, queue => 'api')$$, $$CALL queue.wait('bank', '0')$$,
    $$INSERT INTO queue.tasks (queue) VALUES ('api')$$]) AS statement;
-- Whether a key of another queue is taken makes no difference.
SELECT key, split_part(pg_temp.refused(format('INSERT INTO queue.tasks (queue, key) VALUES (%L, %L)', 'api', key)), E'\n', 1)
FROM unnest('{k, free}'::text[]) AS key;
SELECT count(*) AS completed FROM queue.complete_many(ARRAY[:taken], ARRAY[1]);
SELECT count(*) AS extended FROM queue.extend_many(ARRAY[:taken], ARRAY[1]);
INSERT INTO queue.tasks (queue, payload) VALUES ('bank', '"inserted"');
-- It can name predecessors in both queues, and in no others.
SELECT queue.push('bank', after => ARRAY[:vault]) > 0 AS pushed;
RESET ROLE;
SELECT queue.push('default') AS hidden \gset
SET ROLE mixed;
SELECT split_part(pg_temp.refused(format('SELECT queue.push(%L, after => ARRAY[%s])', 'bank', :hidden)), E'\n', 1);
RESET ROLE;
-- A task can wait for tasks of the same queues, and gets the results of those that the role could work on.
SELECT queue.push('api', '"flow"', priority => -1) AS flow, queue.push('api') AS own, queue.push('bank', priority => -1) AS other \gset
SELECT queue.complete(id, token, '"seen"') FROM queue.claim('1 minute', 'bank');
SET ROLE mixed;
SELECT id, token FROM queue.claim('1 minute', 'api') \gset
SELECT split_part(pg_temp.refused(format('SELECT queue.await_task(%s, %s, %s)', :id, :token, :hidden)), E'\n', 1) AS refused;
SELECT split_part(pg_temp.refused(format('SELECT queue.await_task(%s, %s, 4711)', :id, :token)), E'\n', 1) AS refused;
SELECT * FROM queue.await_task(:id, :token, :other);
SELECT queue.emit('bank', 'e');
SELECT * FROM queue.await_event(:id, :token, 'e', '0');
SELECT * FROM queue.await_task(:id, :token, :own);
SELECT kind, value FROM queue.steps(:id);
SELECT queue.complete(id, token, '"done"') FROM queue.claim('1 minute', 'api', 9);
SELECT id, token FROM queue.claim('1 minute', 'api') \gset
SELECT * FROM queue.await_task(:id, :token, :own);
RESET ROLE;
-- A right for all queues of one kind adds nothing to a right of another kind.
SELECT queue.grant_producer('mixed');
SET ROLE mixed;
SELECT split_part(pg_temp.refused($$SELECT queue.claim('1 minute', 'bank')$$), E'\n', 1);
SELECT split_part(pg_temp.refused($$SELECT queue.claim('1 minute', '{bank,mail}')$$), 'HINT: ', 2) AS hint;
SELECT queue.push('default') > 0 AS pushed;
RESET ROLE;

-- A role has the rights of the roles that it inherits from; without inheritance it has to SET ROLE.
CREATE ROLE member IN ROLE mixed; CREATE ROLE guest NOINHERIT IN ROLE mixed;
GRANT USAGE ON SCHEMA queue TO guest;
SET ROLE member;
SELECT queue.push('bank') > 0 AS pushed;
SELECT count(*) FROM queue.claim('1 minute', 'api');
RESET ROLE;
SELECT pg_temp.can('guest', $$SELECT queue.push('bank')$$);
SET SESSION AUTHORIZATION guest;
SET ROLE mixed;
SELECT queue.push('bank') > 0 AS pushed;
RESET SESSION AUTHORIZATION;
-- A revoked right is gone at once, also in the middle of a session or transaction.
BEGIN;
SET LOCAL ROLE member;
SELECT queue.push('bank') > 0 AS pushed;
RESET ROLE;
REVOKE mixed FROM member;
SELECT split_part(pg_temp.can('member', $$SELECT queue.push('bank')$$), ':', 1);
ROLLBACK;
BEGIN;
SET LOCAL ROLE member;
SELECT queue.push('bank') > 0 AS pushed;
RESET ROLE;
SELECT queue.revoke_producer('mixed'), queue.revoke_producer('mixed', 'bank');
SELECT split_part(pg_temp.can('member', $$SELECT queue.push('bank')$$), ':', 1);
ROLLBACK;
SET ROLE member;
SELECT queue.push('bank') > 0 AS pushed;
RESET ROLE;
-- In a SECURITY DEFINER function, the rights of its owner count. The SQL-only edition sees only the role of the session.
GRANT CREATE ON SCHEMA public TO mixed;
SET ROLE mixed;
CREATE FUNCTION public.push_for_all() RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$SELECT queue.push('bank') > 0$$;
RESET ROLE;
SELECT pg_temp.can('guest', 'SELECT public.push_for_all()');
DROP FUNCTION public.push_for_all();
REVOKE CREATE ON SCHEMA public FROM mixed;
-- An error in a function restores the caller's rights.
SET ROLE mixed;
DO $$
BEGIN
    PERFORM queue.push('bank', priority => NULL);
EXCEPTION WHEN null_value_not_allowed THEN
    RAISE NOTICE 'current user %', current_user;
END
$$;
SELECT current_user;
SELECT pg_temp.refused('SELECT payload FROM queue.tasks');
RESET ROLE;
SELECT queue.revoke_worker('mixed', 'api'), queue.revoke_producer('mixed', 'bank'), queue.revoke_producer('mixed');
REVOKE USAGE ON SCHEMA queue FROM guest;
DROP ROLE member, guest;

-- Dependencies between queues: each worker can end the tasks of its own queue.
CREATE ROLE api_doer; CREATE ROLE bank_doer;
SELECT queue.grant_worker('api_doer', 'api'), queue.grant_worker('bank_doer', 'bank');
CALL queue.purge_where('{"all": true}');
SELECT queue.push('api', '"one"', key => 'k', group_key => 'g') AS one \gset
SELECT queue.push('bank', '"paid"', after => ARRAY[:one]) AS paid \gset
SET ROLE bank_doer;
SELECT payload FROM queue.claim('1 minute', 'bank');
SET ROLE api_doer;
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'api');
SET ROLE bank_doer;
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'bank');
RESET ROLE;

-- A role with default privileges on new tables cannot read tasks in a new partition of the history.
CREATE ROLE curious;
SELECT queue.grant_worker('curious', 'mail');
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO curious;
GRANT SELECT ON queue.history_default TO curious;
SELECT queue_internal.extend_history();
SELECT queue.complete(c.id, c.token) FROM queue.push('default', '"of others"', priority => -99) AS p, queue.claim('1 minute') AS c;
SELECT tableoid::regclass AS partition FROM queue.history WHERE payload = '"of others"' \gset
SET ROLE curious;
SELECT count(*) FROM :partition;
RESET ROLE;
SELECT queue.revoke_worker('curious', 'mail');
DROP OWNED BY curious;
DROP ROLE curious;

-- Revokes a right; a second right of the same role stays.
SELECT queue.grant_producer('mail_doer');
SELECT queue.revoke_worker('mail_doer', 'mail');
SELECT left(pg_temp.can('mail_doer', $$SELECT queue.claim('1 minute', 'mail')$$), 5);
SELECT pg_temp.can('mail_doer', $$SELECT queue.push('mail')$$);
SELECT queue.revoke_producer('mail_doer'), queue.revoke_producer('pusher'), queue.revoke_worker('doer'),
       queue.revoke_operator('boss'), queue.revoke_producer('mail_pusher', 'mail'),
       queue.revoke_operator('mail_boss', 'mail'), queue.revoke_worker('api_doer', 'api'), queue.revoke_worker('bank_doer', 'bank');
SELECT left(pg_temp.can('mail_doer', $$SELECT queue.push('mail')$$), 5);
SELECT count(*) FROM queue.rights;
DROP ROLE nobody_special, pusher, doer, boss, mail_pusher, mail_doer, mail_boss, mixed, api_doer, bank_doer;
-- A hostile search_path changes nothing.
CREATE SCHEMA evil; CREATE TABLE evil.touched ();
CREATE FUNCTION evil.evil(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'led astray'; END $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.evil);
CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.evil);
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'led astray'; END $$;
SET search_path = evil, pg_catalog, public;
SELECT queue.push('default', '"safe"', priority => -9) AS id \gset
SELECT payload, token FROM queue.claim('1 minute') \gset
SELECT queue.complete(:id, :token);
SELECT count(*) FROM queue.stats;
SELECT queue.schedule('nightly', '0 0 1 1 *', 'default', timezone => 'Etc/GMT-3', options => '{"priority": 1}') > pg_catalog.now() AS ahead;
UPDATE queue.schedules SET next_run_at = pg_catalog.now();
SELECT queue.run_schedules(), (SELECT last_error FROM queue.schedules);
CALL queue.maintain();
SELECT queue.bind('a', 'default');
SELECT count(*) FROM queue.publish('a');
CALL queue.reprioritise_where('{"queue": "default", "state": "queued", "newer_than": "1 day"}', 3, batch_size => 1);
CALL queue.purge_where('{"queue": "default"}', batch_size => 1);
CALL queue.wait_result(:id, '10 ms');
SELECT queue.push('default') AS id \gset
CALL queue.wait_result(:id, '10 ms');

RESET ROLE; RESET search_path;
-- A procedure that waits and claims runs as its caller.
CREATE ROLE taker;
SELECT queue.create('taken'), queue.grant_worker('taker', 'taken');
SELECT queue.push('taken') AS id \gset
SET ROLE taker;
CALL queue.take('taken', '1 minute', '0') \gset taken_
SELECT :taken_id = :id AS taken;
CALL queue.take('default');
RESET ROLE;
SELECT queue.revoke_worker('taker', 'taken');
DROP ROLE taker;

-- A right that is revoked takes nothing from a role that it has otherwise.
BEGIN;
SELECT queue.grant_operator('pg_monitor'), queue.revoke_operator('pg_monitor');
SELECT has_table_privilege('pg_monitor', 'queue.stats', 'SELECT') AS stats,
       (SELECT has_function_privilege('pg_monitor', p.oid, 'EXECUTE') FROM pg_proc AS p WHERE p.proname = 'health') AS health,
       has_function_privilege('pg_monitor', 'queue.push_tasks(jsonb)', 'EXECUTE') AS push_tasks;
CREATE ROLE regress_reader;
GRANT USAGE ON TYPE queue.stats TO regress_reader;
SELECT queue.grant_worker('regress_reader'), queue.revoke_worker('regress_reader');
SELECT has_type_privilege('regress_reader', 'queue.stats', 'USAGE') AS kept, has_schema_privilege('regress_reader', 'queue', 'USAGE') AS schema;
SELECT queue.grant_worker(c.relowner::regrole::text), queue.revoke_worker(c.relowner::regrole::text)
FROM pg_class AS c WHERE c.oid = 'queue.tasks'::regclass;
SELECT count(*) AS owner_keeps FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
WHERE n.nspname = 'queue' AND a.grantee = n.nspowner;
ROLLBACK;
-- At REPEATABLE READ, the snapshot may not show another right that needs the same privileges.
CREATE ROLE regress_reader;
SELECT queue.grant_worker('regress_reader');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue.revoke_worker('regress_reader');
ROLLBACK;
SELECT queue.revoke_worker('regress_reader');
DROP ROLE regress_reader;
