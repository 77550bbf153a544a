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
SELECT pg_temp.can('pusher', $$SELECT queue.cancel(1)$$);
SELECT queue.bind('a.#', 'mail'), queue.bind('a.#', 'default');
SELECT pg_temp.can('pusher', $$SELECT queue.publish('a.b')$$);
SELECT pg_temp.can('pusher', $$SELECT queue.bind('b', 'mail')$$);
SELECT pg_temp.can('pusher', $$DELETE FROM queue.bindings$$);
SELECT pg_temp.can('pusher', $$CALL queue.cancel_where('{"all": true}')$$);
-- A worker works.
SET ROLE doer;
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
SELECT queue FROM queue.claim('1 minute', 'mail');
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

-- Taken back; a second right of the same role stays.
SELECT queue.grant_producer('mail_doer');
SELECT queue.revoke_worker('mail_doer', 'mail');
SELECT left(pg_temp.can('mail_doer', $$SELECT queue.claim('1 minute', 'mail')$$), 5);
SELECT pg_temp.can('mail_doer', $$SELECT queue.push('mail')$$);
SELECT queue.revoke_producer('mail_doer'), queue.revoke_producer('pusher'), queue.revoke_worker('doer'),
       queue.revoke_operator('boss'), queue.revoke_producer('mail_pusher', 'mail'),
       queue.revoke_operator('mail_boss', 'mail');
SELECT left(pg_temp.can('mail_doer', $$SELECT queue.push('mail')$$), 5);
SELECT count(*) FROM pg_policies WHERE schemaname = 'queue';
DROP ROLE nobody_special, pusher, doer, boss, mail_pusher, mail_doer, mail_boss;
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
