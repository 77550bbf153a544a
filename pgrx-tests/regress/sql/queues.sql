\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- The queue "default" exists from the start.
SELECT name, lease, max_attempts, backoff_kind, backoff_base, backoff_max, backoff_jitter, paused_at, keep_history
FROM queue.queues;
SELECT queue.create('mail', '{"lease": "2 min", "max_attempts": 5, "keep_history": false,
                              "backoff": {"kind": "linear", "base": "10 s", "max": "5 min", "jitter": 0}}');
SELECT lease, max_attempts, backoff_kind, backoff_base, backoff_max, backoff_jitter, keep_history FROM queue.queues WHERE name = 'mail';
-- An option that is not named stays; null restores the default.
SELECT queue.configure('mail', '{"lease": null, "backoff": {"max": "1 hour", "jitter": null}}');
SELECT lease, max_attempts, backoff_kind, backoff_base, backoff_max, backoff_jitter, keep_history FROM queue.queues WHERE name = 'mail';
-- Whether leases survive a crash, as the setting says by default.
SELECT queue.configure('mail', '{"durable_leases": "on"}');
SELECT durable_leases FROM queue.queues WHERE name = 'mail';
SELECT queue.configure('mail', '{"durable_leases": null}');
SELECT durable_leases FROM queue.queues WHERE name = 'mail';
SELECT queue.configure('mail', '{"backoff": null, "max_attempts": null, "keep_history": null}');
SELECT lease, max_attempts, backoff_kind, backoff_base, backoff_max, backoff_jitter, keep_history FROM queue.queues WHERE name = 'mail';

SELECT pg_temp.refused($$SELECT queue.create('mail')$$);
SELECT pg_temp.refused($$SELECT queue.create('x', '{"leese": "1 s"}')$$);
SELECT pg_temp.refused($$SELECT queue.create('x', '{"backoff": {"kind": "cubic"}}')$$);
SELECT pg_temp.refused($$SELECT queue.create('x', '{"backoff": {"step": 1}}')$$);
SELECT pg_temp.refused($$SELECT queue.configure('nowhere', '{}')$$);
SELECT count(*) FROM queue.queues;

-- Names can contain any characters.
SELECT queue.create(name), queue.push(name) IS NOT NULL AS pushed, queue.channel(name)
FROM (VALUES ('Mixed Case'), ('quo"te''s'), ('snow ☃'), ('a.b-c/d;--'), (repeat('x', 57)), (repeat('x', 58)), (repeat('ü', 64))) AS n (name);
SELECT count(*) FROM queue.queues AS q, LATERAL queue.claim('1 minute', q.name) AS c WHERE c.queue = q.name;

-- A queue with tasks is dropped only with force. The history stays.
SELECT queue.push('mail') AS id \gset
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'mail');
SELECT queue.drop('mail');
SELECT state FROM queue.get(:id);
SELECT pg_temp.refused($$SELECT queue.drop('mail')$$);
SELECT queue.create('mail', '{"max_attempts": 1}');
SELECT queue.push_many('mail', ARRAY['1', '2', '3']::jsonb[]);
SELECT queue.fail(id, token, 'x') FROM queue.claim('1 minute', 'mail');
SELECT count(*) FROM queue.claim('1 minute', 'mail');
SELECT pg_temp.refused($$SELECT queue.drop('mail')$$);
SELECT count(*) FROM queue.tasks WHERE queue = 'mail';
SELECT queue.drop('mail', force => true);
SELECT count(*) FROM queue.all_tasks WHERE queue = 'mail' AND state <> 'completed';
-- A new queue of the same name starts empty. Rights belong to the name, and can be revoked before.
SELECT queue.create('mail');
SELECT queue.push('mail', key => 'k', key_ttl => '1 hour') IS NOT NULL AS pushed;
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'mail');
CREATE ROLE queue_regress_dropped;
SELECT queue.grant_worker('queue_regress_dropped', 'mail');
SELECT queue.drop('mail');
SELECT queue.revoke_worker('queue_regress_dropped', 'mail');
SET client_min_messages = notice;
SELECT queue.revoke_worker('queue_regress_dropped', 'mail');
SET client_min_messages = warning;
DROP ROLE queue_regress_dropped;
SELECT queue.create('mail');
SELECT queue.push('mail', '"again"', key => 'k');
SELECT payload, queue.complete(id, token) FROM queue.claim('1 minute', 'mail');
SELECT queue.drop('mail');

-- Purging deletes all tasks that do not run.
SELECT queue.create('mail', '{"max_attempts": 1}');
SELECT queue.push_many('mail', ARRAY['1', '2', '3', '4']::jsonb[]);
SELECT queue.fail(id, token, 'x') FROM queue.claim('1 minute', 'mail');
SELECT count(*) FROM queue.claim('1 minute', 'mail');
SELECT queue.purge('mail'), queue.purge('mail');
SELECT state, payload FROM queue.all_tasks WHERE queue = 'mail' AND state <> 'completed';

-- Restoring the queue "default" keeps its options if it exists.
SELECT queue.configure('default', '{"max_attempts": 7}'), queue.pause('default');
INSERT INTO queue.queues (name) VALUES ('default') ON CONFLICT DO NOTHING;
SELECT max_attempts, paused_at IS NOT NULL AS paused FROM queue.queues WHERE name = 'default';
INSERT INTO queue.queues (name) VALUES ('default');

-- The lease of a queue is at most max_lease. A longer one from before max_lease was lowered is cut.
SELECT pg_temp.refused($$SELECT queue.create('long', '{"lease": "8 days"}')$$);
SELECT queue.create('long', '{"lease": "3 days"}');
SELECT pg_temp.refused($$SELECT queue.configure('long', '{"lease": "8 days"}')$$);
SELECT count(queue.push('long')) FROM generate_series(1, 2);
SET queue.max_lease = '2min';
SELECT lease_until BETWEEN now() + interval '1 minute' AND now() + interval '5 minutes' AS two_minutes FROM queue.claim(queue => 'long');
SELECT lease_until BETWEEN now() + interval '1 minute' AND now() + interval '5 minutes' AS two_minutes FROM queue.claim(NULL, ARRAY['long']);
SELECT e.lease_until BETWEEN now() + interval '1 minute' AND now() + interval '5 minutes' AS two_minutes
FROM queue.tasks AS t, queue.extend(t.id, t.token) AS e WHERE t.queue = 'long';
SELECT pg_temp.refused($$SELECT queue.configure('long', '{"lease": "1 hour"}')$$);
SELECT queue.configure('long', '{"max_attempts": 3}');
RESET queue.max_lease;

-- With if_not_exists a queue that exists stays as it is.
SELECT queue.create('again', '{"max_attempts": 3}', if_not_exists => true);
SET client_min_messages = notice;
SELECT queue.create('again', '{"max_attempts": 9}', if_not_exists => true);
SET client_min_messages = warning;
SELECT max_attempts FROM queue.queues WHERE name = 'again';
SELECT split_part(pg_temp.refused($$SELECT queue.create('again', if_not_exists => false)$$), E'\n', 1) AS refused;
-- A unique violation of another table is not taken for a queue that exists.
CREATE TABLE audit (name text PRIMARY KEY);
INSERT INTO audit VALUES ('audited');
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.audit VALUES (NEW.name); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT ON queue.queues FOR EACH ROW EXECUTE FUNCTION audit();
SELECT split_part(pg_temp.refused($$SELECT queue.create('audited', if_not_exists => true)$$), E'\n', 1) AS refused;
SELECT split_part(pg_temp.refused($$SELECT queue.create('audited')$$), E'\n', 1) AS refused;
SELECT count(*) FROM queue.queues WHERE name = 'audited';
DROP TRIGGER audit ON queue.queues;
DROP TABLE audit;
DROP FUNCTION audit();

-- All queues at once.
SELECT count(*) AS running FROM queue.queues WHERE paused_at IS NULL \gset
SELECT queue.pause_all() = :running AS all_of_them, queue.pause_all() AS second_time;
SELECT count(*) FROM queue.queues WHERE paused_at IS NULL;
SELECT queue.push('again') > 0 AS pushed;
SELECT count(*) FROM queue.claim('1 minute', 'again');
SELECT queue.resume_all() = (SELECT count(*) FROM queue.queues) AS all_of_them, queue.resume_all() AS second_time;
SELECT count(*) FROM queue.claim('1 minute', 'again');
