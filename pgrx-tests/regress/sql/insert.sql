\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A plain INSERT or COPY works as a push does.
INSERT INTO queue.tasks (queue, payload) VALUES ('default', '"inserted"');
COPY queue.tasks (queue, payload, priority) FROM stdin;
default	"copied"	1
default	"copied too"	2
\.
SELECT id, payload, state, attempt, token FROM queue.tasks ORDER BY id;
SELECT id, payload FROM queue.claim('1 minute', max_tasks => 10);

-- It is checked as a push is.
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue) VALUES ('default'), ('mail')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, run_at) VALUES ('default', 'infinity')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, max_attempts) VALUES ('default', 0)$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, state) VALUES ('default', 'completed')$$);
SELECT left(pg_temp.refused($$INSERT INTO queue.tasks (queue, state) VALUES ('default', 'running')$$), 5);
SELECT left(pg_temp.refused($$INSERT INTO queue.tasks (queue, payload) VALUES ('default', NULL)$$), 5);
SELECT count(*) FROM queue.tasks;
