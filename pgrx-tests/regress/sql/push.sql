\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Only the name of the queue is required.
SELECT queue.push('default');
SELECT id, queue, state, priority, attempt, max_attempts, token, lease_until, worker, headers, payload,
       run_at <= clock_timestamp() AS due
FROM queue.tasks;

-- All arguments.
SELECT queue.push('default', '{"to": "a@example.com"}', priority => -5, delay => '1 hour', max_attempts => 3,
                  headers => '{"request_id": "r-1", "user": "u-1"}');
SELECT id, priority, max_attempts, headers, payload, run_at - created_at BETWEEN '59 min' AND '61 min' AS in_an_hour
FROM queue.tasks WHERE id = 2;
SELECT queue.push('default', run_at => '2099-01-01 00:00+00');
SELECT run_at AT TIME ZONE 'UTC' AS run_at FROM queue.tasks WHERE id = 3;

-- Payloads are stored unchanged.
SELECT queue.push('default', '{"n": 12345678901234567890.5, "deep": [[[{}]]], "text": "\u00e9 \\u0000"}');
SELECT payload FROM queue.tasks WHERE id = 4;

-- A push that is rolled back, whole or to a savepoint, leaves no task.
BEGIN;
SELECT queue.push('default');
SAVEPOINT before;
SELECT queue.push('default');
ROLLBACK TO before;
COMMIT;
BEGIN;
SELECT queue.push('default');
ROLLBACK;
SELECT id FROM queue.tasks ORDER BY id;

-- push_many keeps the order of the payloads.
SELECT queue.push_many('default', ARRAY['"a"', '"b"', '"c"']::jsonb[], priority => 7);
SELECT id, payload, priority FROM queue.tasks WHERE priority = 7 ORDER BY id;
SELECT count(DISTINCT run_at) FROM queue.tasks WHERE priority = 7;
SELECT queue.push_many('default', '{}');

SELECT pg_temp.refused($$SELECT queue.push('mail')$$);
SELECT pg_temp.refused($$SELECT queue.push_many('mail', '{}')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', run_at => now(), delay => '1 s')$$);
SELECT count(*) FROM queue.tasks;

-- push_tasks: each task has its own queue and options. Where a key is taken, the id is that of the task that has it.
SELECT queue.create('mixed');
SELECT queue.create('other');
SELECT array_agg(p.id) AS ids FROM queue.push_tasks('[
    {"queue": "mixed", "payload": null},
    {"queue": "mixed", "key": "b", "priority": 5, "headers": {"h": 1}, "payload": {"n": 12345678901234567890.5}},
    {"queue": "other", "payload": "x", "delay": "1 hour", "max_attempts": 3},
    {"queue": "mixed", "key": "a", "group_key": "g", "backoff": {"base": "5 s"}, "key_ttl": "1 hour", "run_at": null},
    {"queue": "mixed", "key": "b", "payload": "again"}]') AS p (id) \gset
SELECT g.nth, t.queue, t.payload, t.priority, t.headers, t.key, t.group_key, t.backoff, t.max_attempts, t.run_at > now() + interval '50 minutes' AS later
FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS g (id, nth) JOIN queue.tasks AS t ON t.id = g.id ORDER BY g.nth;
SELECT count(*) FROM queue.push_tasks(jsonb_build_array(
    jsonb_build_object('queue', 'mixed', 'after', jsonb_build_array((:'ids'::bigint[])[1]), 'on_predecessor_failure', 'continue'),
    jsonb_build_object('queue', 'mixed', 'key', 'b', 'payload', 'new', 'on_duplicate', 'replace')));
SELECT key, state, payload FROM queue.tasks WHERE queue = 'mixed' ORDER BY key, id;
SELECT split_part(pg_temp.refused(format('SELECT queue.push_tasks(%L)', tasks)), E'\n', 1) AS refused FROM (VALUES
    (1, '[{"queue": "mixed"}, {"queue": "mixed", "key": "b", "on_duplicate": "error"}]'), (2, '[{"queue": "mixed"}, {"queue": "nowhere"}]')) AS v (nth, tasks) ORDER BY nth;
-- A member of another type is refused and not converted. The error has its name and the position of the element, and never its value.
SELECT left(v.member, 22) AS member, v.value, refused
FROM (VALUES
    (1, 'queue', '1'), (2, 'key', '5'), (3, 'key', 'true'), (4, 'group_key', '{"secret": 1}'), (5, 'on_duplicate', '1'), (6, 'priority', '"1"'), (7, 'priority', '1.5'),
    (8, 'priority', '1.0'), (9, 'priority', '5000000000'), (10, 'max_attempts', '"3"'), (11, 'run_at', '1700000000'), (12, 'run_at', '"secret"'), (13, 'delay', '60'),
    (14, 'delay', '"secret"'), (15, 'key_ttl', '1'), (16, 'headers', '"secret"'), (17, 'backoff', '[]'), (18, 'after', '1'), (19, 'after', '["1"]'), (20, 'after', '[1.5]'),
    (21, 'after', '[[1]]'), (22, 'on_predecessor_failure', '1'), (23, 'key_ttl_from', '{}'), (24, 'priorty', '1'), (25, repeat('secret', 11), 'null')) AS v (nth, member, value),
LATERAL (SELECT split_part(pg_temp.refused(format('SELECT queue.push_tasks(%L)', format('[{"queue": "mixed"}, {"queue": "mixed", "%s": %s}, {"queue": "mixed"}]', v.member, v.value))), E'\n', 1)) AS r (refused)
ORDER BY v.nth;
SELECT count(*) FROM queue.push_tasks('[{"queue": "mixed", "payload": 1, "priority": null, "run_at": null, "delay": null, "key": null, "on_duplicate": null, "group_key": null,
    "max_attempts": null, "headers": null, "after": null, "backoff": null, "key_ttl": null, "on_predecessor_failure": null, "key_ttl_from": null}]');
SELECT count(*) FROM queue.tasks WHERE queue = 'mixed';
SELECT count(*) FROM queue.push_tasks('[]');

-- A trigger that the user added can suppress a task: it has no id.
CREATE SEQUENCE suppressed;
GRANT USAGE ON SEQUENCE suppressed TO PUBLIC;
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF NEW.payload = ''"no"'' THEN PERFORM nextval(''public.suppressed''); RETURN NULL; END IF; RETURN NEW; END';
CREATE TRIGGER suppress BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION suppress();
SELECT queue.push('default') AS before \gset
SELECT queue.push('default', '"no"') AS alone, queue.push('default', '"no"', after => ARRAY[:before]) AS dependent;
SELECT last_value AS suppressed FROM suppressed;
SELECT count(*) FROM queue.push_many('default', '{1,"\"no\"",2}'::jsonb[]);
SELECT count(id), count(*) FROM queue.push_tasks('[{"queue": "default", "payload": "no"}, {"queue": "default", "payload": 1}]') AS id;
SELECT id, pushed FROM queue.try_push('default', '"no"', after => ARRAY[:before]);
-- It takes no key, whatever comes first, the trigger or the key; and a running task keeps its key.
SELECT queue.create('suppressing');
SELECT queue.push('suppressing', key => 'running', key_ttl => '1 hour') AS running \gset
SELECT count(*) FROM queue.claim('1 minute', 'suppressing');
SELECT queue.push('suppressing', '"no"', key => 'new', on_duplicate => d.how) AS id, queue.push('suppressing', '"no"', key => 'running', on_duplicate => 'replace') AS replacing
FROM unnest('{skip, replace, reschedule, error}'::text[]) AS d (how);
ALTER TRIGGER suppress ON queue.tasks RENAME TO zz_suppress;
SELECT queue.push('suppressing', '"no"', key => 'new', on_duplicate => d.how) AS id, queue.push('suppressing', '"no"', key => 'running', on_duplicate => 'replace') AS replacing
FROM unnest('{skip, replace, reschedule, error}'::text[]) AS d (how);
SELECT id, pushed FROM queue.try_push('suppressing', '"no"', key => 'new');
SELECT queue.push('suppressing', key => 'running') = :running AS keeps_key;
SELECT key, task_id = :running AS running, ttl, replaced_ttl, expires_at FROM queue_internal.keys WHERE queue = 'suppressing';
SELECT queue.push('suppressing', key => 'running', key_ttl => '2 hours', on_duplicate => 'replace') > :running AS replaced;
SELECT ttl, replaced_ttl FROM queue_internal.keys WHERE queue = 'suppressing';
SELECT queue.cancel('suppressing', 'running');
SELECT task_id = :running AS running, ttl, replaced_ttl FROM queue_internal.keys WHERE queue = 'suppressing';
-- A trigger that makes a plain push less plain: the task is checked like any other.
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE NEW.payload ->> 0
        WHEN 'queue' THEN NEW.queue := 'nowhere';
        WHEN 'run_at' THEN NEW.run_at := 'infinity';
        WHEN 'lease' THEN NEW.lease := '-1';
        WHEN 'group' THEN NEW.group_key := 'g';
        ELSE NULL;
    END CASE;
    RETURN NEW;
END $$;
CREATE TRIGGER a_change BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION change();
SELECT p.payload, pg_temp.refused(format('SELECT queue.push(''suppressing'', %L)', p.payload))
FROM unnest('{"[\"queue\"]","[\"run_at\"]","[\"lease\"]"}'::text[]) AS p (payload);
SELECT queue.push('suppressing', '["group"]') IS NOT NULL AS pushed;
SELECT count(*) FROM queue_internal.events WHERE queue = 'suppressing' AND group_key = 'g';
DROP FUNCTION change CASCADE;
-- One trigger of a user changes the task, and another one deletes it.
CREATE FUNCTION drop_again() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN DELETE FROM queue.tasks WHERE id = NEW.id; RETURN NULL; END';
CREATE FUNCTION add_kind() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.kind := ''changed''; RETURN NEW; END';
CREATE TRIGGER drop_again AFTER INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION drop_again();
CREATE TRIGGER add_kind BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION add_kind();
SELECT queue.push('suppressing', '"gone"') IS NOT NULL AS pushed, queue.push('suppressing', '"gone"', headers => '{}') IS NOT NULL AS pushed;
SELECT count(*) FROM queue.all_tasks WHERE payload = '"gone"';
DROP FUNCTION drop_again CASCADE;
DROP FUNCTION add_kind CASCADE;

DROP FUNCTION suppress CASCADE;
DROP SEQUENCE suppressed;
SELECT queue.drop('suppressing', force => true);

-- An owner who looks into the internal schema is checked like others.
SET search_path = pg_catalog, queue_internal, pg_temp;
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, payload) VALUES ('nowhere', '1')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, payload, weight) VALUES ('default', '1', -5)$$);
RESET search_path;
