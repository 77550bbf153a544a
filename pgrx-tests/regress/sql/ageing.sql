\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Without ageing, smaller priorities always come first, and a task of a large priority may never start.
SELECT queue.push('default', '"unimportant, an hour old"', priority => 9, run_at => now() - interval '1 hour'),
       queue.push('default', '"urgent"', priority => 0);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);

-- With ageing, each such waiting time is worth one step of priority.
SELECT queue.create('q', '{"ageing": "1 minute"}');
SELECT queue.push('q', '"9, an hour old"', priority => 9, run_at => now() - interval '1 hour'),
       queue.push('q', '"0, new"', priority => 0),
       queue.push('q', '"2, a minute old"', priority => 2, run_at => now() - interval '1 minute'),
       queue.push('q', '"2, three minutes old"', priority => 2, run_at => now() - interval '3 minutes'),
       queue.push('q', '"-1, for later"', priority => -1, delay => '1 hour');
SELECT payload FROM queue.claim('1 minute', 'q', 10);
-- Claimed one by one, the order is the same.
SELECT queue.release(id, token) FROM queue.tasks WHERE queue = 'q' AND state = 'running';
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
-- A task whose lease has expired keeps its place.
SELECT pg_temp.expire(id) FROM queue.tasks WHERE queue = 'q' AND priority = 9;
SELECT payload, attempt FROM queue.claim('1 minute', 'q');

-- Priorities can be any distance apart.
SELECT queue.create('far', '{"ageing": "1 day"}');
SELECT count(queue.push('far', to_jsonb(p), priority => p)) FROM unnest('{2147483647, 0, -2147483648}'::integer[]) AS p;
SELECT payload FROM queue.claim('1 minute', 'far');
SELECT payload FROM queue.claim('1 minute', 'far', 10);
