\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Handlers in the database: attaching, detaching, and their errors. No background worker runs here, so no handler does.
CREATE ROLE handler_app LOGIN;
SELECT queue.create('mail');
CREATE FUNCTION public.send(task queue.claimed_task) RETURNS jsonb LANGUAGE sql RETURN task.payload;
CREATE FUNCTION public.two(task queue.claimed_task, more integer DEFAULT 1) RETURNS jsonb LANGUAGE sql RETURN task.payload;
CREATE FUNCTION public.wrong(task queue.claimed_task) RETURNS text LANGUAGE sql RETURN 'text';
CREATE FUNCTION public.many(task queue.claimed_task) RETURNS SETOF jsonb LANGUAGE sql BEGIN ATOMIC SELECT task.payload; END;
CREATE PROCEDURE public.proc(task queue.claimed_task) LANGUAGE sql BEGIN ATOMIC SELECT 1; END;

-- The role needs the right of a worker.
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app')$$);
SELECT queue.grant_worker('handler_app', 'mail');
SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app');
SELECT queue, handler, role, workers FROM queue.handlers;

-- Attaching again replaces the handler.
SELECT queue.attach(queue => 'mail', handler => 'public.send(queue.claimed_task)', role => 'handler_app', workers => 3);
SELECT queue, handler, role, workers FROM queue.handlers;
SELECT * FROM queue.failing_handlers;

-- Invalid arguments.
SELECT pg_temp.refused($$SELECT queue.attach(NULL, 'public.send(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('', 'public.send(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('nowhere', 'public.send(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', NULL, 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', NULL)$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app', NULL)$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app', 0)$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app', 65)$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_nobody')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.missing(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.two(queue.claimed_task, integer)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.wrong(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.many(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.proc(queue.claimed_task)', 'handler_app')$$);
SELECT workers FROM queue.handlers;

-- What the role lacks.
ALTER ROLE handler_app NOLOGIN;
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app')$$);
ALTER ROLE handler_app LOGIN;
REVOKE EXECUTE ON FUNCTION public.send FROM PUBLIC;
SELECT pg_temp.refused($$SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app')$$);
SELECT queue, problem FROM queue.failing_handlers;
GRANT EXECUTE ON FUNCTION public.send TO handler_app;
SELECT * FROM queue.failing_handlers;

-- An operator sees the handlers of its queues, and cannot change them.
CREATE ROLE handler_boss;
SELECT queue.grant_operator('handler_boss', 'default');
SET ROLE handler_boss;
SELECT queue FROM queue.handlers;
SELECT pg_temp.refused($$SELECT queue.attach('default', 'public.send(queue.claimed_task)', 'handler_app')$$);
SELECT pg_temp.refused($$SELECT queue.detach('default')$$);
SELECT pg_temp.refused($$INSERT INTO queue.handlers (queue, handler, role) VALUES ('default', 'public.send(queue.claimed_task)', 'handler_app')$$);
RESET ROLE;

-- Detaching, also by dropping the queue.
SELECT queue.detach('mail'), queue.detach('mail');
SELECT pg_temp.refused($$SELECT queue.detach(NULL)$$);
SELECT pg_temp.refused($$SELECT queue.detach('nowhere')$$);
SELECT queue.attach('mail', 'public.send(queue.claimed_task)', 'handler_app');
SELECT queue.drop('mail');
SELECT count(*) FROM queue.handlers;
