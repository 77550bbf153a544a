\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A plain INSERT or COPY works like a push.
INSERT INTO queue.tasks (queue, payload) VALUES ('default', '"inserted"');
COPY queue.tasks (queue, payload, priority) FROM stdin;
default	"copied"	1
default	"copied too"	2
\.
SELECT id, payload, state, attempt, token FROM queue.tasks ORDER BY id;
SELECT id, payload FROM queue.claim('1 minute', max_tasks => 10);

-- It is checked like a push.
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue) VALUES ('default'), ('mail')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, run_at) VALUES ('default', 'infinity')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, max_attempts) VALUES ('default', 0)$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, weight) VALUES ('default', 0)$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, state) VALUES ('default', 'completed')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, headers) VALUES ('default', '[1]')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, backoff) VALUES ('default', '"fast"')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, backoff) VALUES ('default', '{"base": "soon"}')$$);
SELECT left(pg_temp.refused($$INSERT INTO queue.tasks (queue, state) VALUES ('default', 'running')$$), 5);
SELECT left(pg_temp.refused($$INSERT INTO queue.tasks (queue, payload) VALUES ('default', NULL)$$), 5);
SELECT count(*) FROM queue.tasks;

-- Only the owner and superusers can restore dumps: a producer whose session looks like a restore is checked as usual.
CREATE ROLE queue_regress_restorer;
SELECT queue.grant_producer('queue_regress_restorer');
SET ROLE queue_regress_restorer;
SET check_function_bodies = off;
SELECT set_config('search_path', '', false);
INSERT INTO queue.tasks (queue, payload, key) VALUES ('default', '1', 'once'), ('default', '2', 'once'), ('default', '3', 'once');
INSERT INTO queue.tasks (queue) VALUES ('nowhere');
RESET search_path;
RESET check_function_bodies;
RESET ROLE;
SELECT payload FROM queue.tasks WHERE key = 'once';
SELECT queue.revoke_producer('queue_regress_restorer');
DROP ROLE queue_regress_restorer;

-- A restore can insert a task with an expired lease before its queue, which has the number of attempts. The task waits.
BEGIN;
SET LOCAL check_function_bodies = off;
SELECT set_config('search_path', '', true);
INSERT INTO queue.tasks (id, queue, state, attempt, token, lease_until) VALUES (1001, 'later', 'running', 1, 1, '2000-01-01');
SET LOCAL search_path = public;
SELECT queue.reap();
SELECT id, queue, state, attempt, jsonb_array_length(errors) AS errors FROM queue.all_tasks WHERE id = 1001;
ROLLBACK;

-- Such a task can be cancelled, and its dependent task is then unblocked.
BEGIN;
SET LOCAL check_function_bodies = off;
SELECT set_config('search_path', '', true);
INSERT INTO queue.tasks (id, queue) VALUES (1001, 'later');
SET LOCAL search_path = public;
SELECT queue.create('dependents');
SELECT queue.push('dependents', '"after it"', after => '{1001}', on_predecessor_failure => 'continue') > 0 AS pushed;
SELECT queue.cancel(1001);
SELECT payload FROM queue.claim('1 minute', 'dependents');
ROLLBACK;
