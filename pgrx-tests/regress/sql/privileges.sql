\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- CREATE EXTENSION makes no role and gives nothing to anybody.
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
-- A producer pushes, and sees nothing of what is there.
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
-- A worker works.
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
SELECT pg_temp.can('pusher', $$SELECT queue.schedule('x', '@daily', 'mail')$$);
-- An operator does all that, and the rest; but gives no rights.
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
UPDATE queue.schedules SET next_run_at = now();
SELECT queue.run_schedules();
RESET ROLE;
SELECT pg_temp.can('boss', $$SELECT queue.grant_worker('nobody_special')$$);

-- Rights for one queue alone.
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
SELECT DISTINCT queue FROM queue.tasks;
RESET ROLE;
SET ROLE mail_boss;
SELECT queue.configure('mail', '{"lease": null, "max_attempts": 7}'), queue.pause('mail'), queue.resume('mail');
SELECT left(pg_temp.refused($$SELECT queue.pause('default')$$), 5);
SELECT count(*) FROM queue.all_tasks WHERE queue <> 'mail';
-- The schedules of other queues are none of his business.
SELECT name, queue FROM queue.schedules;
UPDATE queue.schedules SET next_run_at = now();
SELECT queue.run_schedules(), queue.run_schedule('news') > 0 AS by_hand;
SELECT left(pg_temp.refused(statement), 5) AS refused FROM (VALUES
    ($$SELECT queue.schedule('mine', '@daily', 'default')$$), ($$SELECT queue.schedule('nightly', '@daily', 'mail')$$),
    ($$SELECT queue.run_schedule('nightly')$$), ($$SELECT queue.unschedule('nightly')$$),
    ($$UPDATE queue.schedules SET queue = 'default'$$)) AS v (statement);
SELECT queue.unschedule('news');
SELECT queue.bind('c', 'mail');
SELECT left(pg_temp.refused($$SELECT queue.bind('c', 'default')$$), 5);
CALL queue.purge_where('{"all": true}', dry_run => true);
SELECT left(pg_temp.refused($$CALL queue.move_where('{"all": true}', 'default')$$), 5);
SELECT pg_temp.refused(format('CALL queue.wait_result(%s)', :secret));
RESET ROLE;
SELECT count(*) AS of_the_others FROM queue.tasks WHERE queue = 'default';
-- The others go on as before.
SELECT pg_temp.can('pusher', $$SELECT queue.push('default')$$);
SET ROLE doer;
SELECT count(*) FROM queue.claim('1 minute', ARRAY['default', 'mail'], 100);
RESET ROLE;

-- What the policies of a queue keep in mind is guarded as its tasks are. Two queues with all of them:
CREATE ROLE api_pusher; CREATE ROLE api_doer;
SELECT queue.create(name, '{"max_running": 2, "rate_limit": 50, "rate_period": "1 hour", "key_ttl": "1 hour"}') FROM unnest('{api, bank}'::text[]) AS name;
SELECT queue.grant_producer('api_pusher', 'api'), queue.grant_worker('api_doer', 'api');
SELECT queue.push('bank', '"vault"', key => 'k', group_key => 'g') AS vault \gset
SELECT queue.push('bank', '"safe"', after => ARRAY[:vault], group_key => 'g') AS safe \gset
SELECT payload FROM queue.claim('1 hour', 'bank', 2);
CREATE FUNCTION pg_temp.touched(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    touched bigint;
BEGIN
    EXECUTE statement;
    GET DIAGNOSTICS touched = ROW_COUNT;
    RETURN touched || ' rows';
EXCEPTION WHEN OTHERS THEN
    RETURN sqlstate || ': ' || sqlerrm;
END
$$;
SET ROLE api_pusher;
SELECT queue.push('api', '"one"', key => 'k', group_key => 'g', key_ttl => '1 day') AS one \gset
SELECT queue.push('api', '"skip"', key => 'k') = :one AS skipped, queue.push('api', '"two"', key => 'k', on_duplicate => 'replace') = :one AS replaced,
       queue.push('api', '"later"', key => 'k', on_duplicate => 'reschedule') = :one AS rescheduled;
SELECT left(pg_temp.refused($$SELECT queue.push('api', key => 'k', on_duplicate => 'error')$$), 5);
SELECT count(*) FROM queue.push_many('api', ARRAY['"three"', '"four"', '"five"']::jsonb[], keys => '{k3, k4, k}', group_keys => '{g, NULL, g}');
SELECT queue.push('api', '"six"', after => ARRAY[:one]) AS six \gset
-- The other queue, and what it keeps in mind, is as if it were not there. A task of a hidden queue cannot be waited for.
SELECT DISTINCT queue FROM queue_internal.keys; SELECT DISTINCT queue, predecessor_queue FROM queue_internal.dependencies;
SELECT duplicate, left(pg_temp.refused(format('SELECT queue.push(%L, key => %L, on_duplicate => %L)', 'bank', 'k', duplicate)), 5) AS refused
FROM unnest('{skip, replace, reschedule, error}'::text[]) AS duplicate;
SELECT statement, pg_temp.touched(replace(replace(statement, ':vault', :'vault'), ':one', :'one')) FROM unnest(ARRAY[
    $$SELECT queue.push('api', after => ARRAY[:vault])$$,
    $$INSERT INTO queue.tasks (queue, key) VALUES ('bank', 'new')$$,
    $$INSERT INTO queue.tasks (queue, group_key) VALUES ('bank', 'g')$$,
    $$INSERT INTO queue_internal.keys (queue, key, task_id) VALUES ('bank', 'new', 1)$$,
    $$UPDATE queue_internal.keys SET task_id = 1 WHERE queue = 'bank'$$,
    $$UPDATE queue_internal.keys SET queue = 'bank'$$,
    $$DELETE FROM queue_internal.keys$$,
    $$INSERT INTO queue_internal.dependencies VALUES (:one, 1, 'bank', 'api', 'release')$$,
    $$INSERT INTO queue_internal.dependencies VALUES (:vault, :one, 'api', 'bank', 'release')$$,
    $$DELETE FROM queue_internal.dependencies$$,
    $$INSERT INTO queue_internal.signals (queue, group_key) VALUES ('bank', 'g')$$,
    $$SELECT FROM queue_internal.signals$$, $$SELECT FROM queue_internal.slots$$, $$SELECT FROM queue_internal.tokens$$]) AS statement;
-- Between queues: what waits for a task of one is told by a worker who does not know of the other.
RESET ROLE;
SELECT queue.push('bank', '"paid"', after => ARRAY[:one]) AS paid \gset
SELECT queue.push('bank', '"unpaid"', after => ARRAY[:six]) AS unpaid \gset
SELECT count(*) FROM queue.claim('1 minute', 'bank');
SET ROLE api_doer;
SELECT payload, state, gate FROM queue.tasks ORDER BY id;
SELECT id, token, payload FROM queue.claim('1 minute', 'api', 10) ORDER BY id;
SELECT queue.complete(:one, 1);
SELECT queue.complete(id, 1) FROM queue.tasks WHERE payload = '"four"';
SELECT queue.fail(id, token, 'x', permanent => true), payload FROM queue.claim('1 minute', 'api', 10) ORDER BY id;
SELECT count(*) FROM queue.claim('1 minute', 'api', 10);
SELECT key, expires_at IS NOT NULL AS held FROM queue_internal.keys ORDER BY key;
SELECT DISTINCT queue, predecessor_queue FROM queue_internal.dependencies;
SELECT left(pg_temp.refused($$SELECT queue.claim('1 minute', 'bank')$$), 5), left(pg_temp.refused(format('SELECT queue.complete(%s, 1)', :vault)), 5);
SELECT relation, queue FROM (SELECT 'keys' AS relation, queue FROM queue_internal.keys UNION SELECT 'slots', queue FROM queue_internal.slots
    UNION SELECT 'tokens', queue FROM queue_internal.tokens UNION SELECT 'signals', queue FROM queue_internal.signals) AS r ORDER BY 1, 2;
SELECT statement, pg_temp.touched(replace(replace(statement, ':vault', :'vault'), ':safe', :'safe')) FROM unnest(ARRAY[
    $$UPDATE queue_internal.keys SET expires_at = now() WHERE queue = 'bank'$$,
    $$DELETE FROM queue_internal.keys WHERE queue = 'bank'$$,
    $$UPDATE queue_internal.slots SET task_id = NULL WHERE queue = 'bank'$$,
    $$UPDATE queue_internal.slots SET queue = 'bank'$$,
    $$UPDATE queue_internal.tokens SET taken = '{}' WHERE queue = 'bank'$$,
    $$DELETE FROM queue_internal.tokens$$,
    $$DELETE FROM queue_internal.dependencies WHERE queue = 'bank'$$,
    $$UPDATE queue_internal.dependencies SET on_failure = 'release'$$,
    $$DELETE FROM queue_internal.signals WHERE queue = 'bank'$$,
    $$INSERT INTO queue_internal.signals (queue, group_key) VALUES ('bank', 'g')$$,
    $$INSERT INTO queue_internal.signals (queue, task_id) VALUES ('bank', :safe)$$,
    $$INSERT INTO queue_internal.signals (queue, task_id, predecessor_id, outcome) VALUES ('bank', :safe, :vault, 'completed')$$]) AS statement;
RESET ROLE;
SELECT payload FROM queue.claim('1 minute', 'bank', 10);
SELECT payload, state, errors -> -1 ->> 'error' LIKE 'predecessor % failed' AS told FROM queue.all_tasks WHERE queue = 'bank' ORDER BY id;
SELECT queue.complete(:vault, 1);
SELECT payload FROM queue.claim('1 minute', 'bank', 10);
-- A task that is moved tells those who wait for it from its new queue.
SELECT queue.push('bank', '"coin"', key => 'coin') AS coin \gset
SELECT count(queue.push('bank', '"note"', after => ARRAY[:coin]));
SELECT queue.grant_operator('api_pusher', 'api'), queue.grant_operator('api_pusher', 'bank');
SET ROLE api_pusher;
CALL queue.move_where('{"key": "coin"}', 'api');
SELECT queue, key FROM queue_internal.keys WHERE key = 'coin';
SET ROLE api_doer;
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'api');
RESET ROLE;
SELECT queue.complete(id, token), payload FROM queue.all_tasks WHERE payload IN ('"paid"', '"safe"');
SELECT payload FROM queue.claim('1 minute', 'bank', 10);
SELECT queue.complete(id, 1) FROM queue.tasks WHERE payload = '"note"';
-- Who has rights on all queues goes on as before.
SET ROLE pusher;
SELECT queue.push('api', '"five"', key => 'k5', group_key => 'g') AS five \gset
SELECT queue.push('bank', '"six"', key => 'k5', after => ARRAY[:five]) AS six \gset
SELECT queue.push('bank', '"seven"', key => 'k5', on_duplicate => 'replace') = :six AS replaced;
SET ROLE doer;
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', ARRAY['api', 'bank'], 10);
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', ARRAY['api', 'bank'], 10);
RESET ROLE;

-- Whoever has default privileges on new tables reads nobody's tasks in a partition of the history.
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

-- Taken back; a second right of the same role stays.
SELECT queue.grant_producer('mail_doer');
SELECT queue.revoke_worker('mail_doer', 'mail');
SELECT left(pg_temp.can('mail_doer', $$SELECT queue.claim('1 minute', 'mail')$$), 5);
SELECT pg_temp.can('mail_doer', $$SELECT queue.push('mail')$$);
SELECT queue.revoke_producer('mail_doer'), queue.revoke_producer('pusher'), queue.revoke_worker('doer'),
       queue.revoke_operator('boss'), queue.revoke_producer('mail_pusher', 'mail'),
       queue.revoke_operator('mail_boss', 'mail'), queue.revoke_producer('api_pusher', 'api'), queue.revoke_worker('api_doer', 'api'),
       queue.revoke_operator('api_pusher', 'api'), queue.revoke_operator('api_pusher', 'bank');
SELECT left(pg_temp.can('mail_doer', $$SELECT queue.push('mail')$$), 5);
SELECT count(*) FROM pg_policies WHERE schemaname IN ('queue', 'queue_internal') AND policyname <> 'of_a_task';
DROP ROLE nobody_special, pusher, doer, boss, mail_pusher, mail_doer, mail_boss, api_pusher, api_doer;
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
SELECT queue.schedule('nightly', '* * * * *', 'default', timezone => 'Etc/GMT-3', options => '{"priority": 1}') > pg_catalog.now() AS ahead;
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
