\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.create('long', '{"lease": "10 minutes"}');
SELECT queue.push('long') AS id \gset
SELECT token FROM queue.claim('1 second', 'long') \gset
-- One call extends the lease, records progress, and returns whether to stop.
SELECT lease_until BETWEEN statement_timestamp() + '30 s' AND clock_timestamp() + '30 s' AS extended, cancel_requested
FROM queue.extend(:id, :token, '30 seconds', '{"done": 10}');
SELECT progress, attempt, token FROM queue.tasks;
-- Without the argument lease, the queue's lease is used. Without progress, the last progress stays.
SELECT lease_until BETWEEN statement_timestamp() + '600 s' AND clock_timestamp() + '600 s' AS extended FROM queue.extend(:id, :token);
SELECT progress FROM queue.tasks;
SELECT queue.cancel(:id);
SELECT cancel_requested FROM queue.extend(:id, :token);

SELECT pg_temp.expire(:id), queue.reap();
SELECT pg_temp.refused(format('SELECT queue.extend(%s, %s)', :id, :token));

-- extend_many leaves out tasks with a stale token.
SELECT queue.push_many('default', ARRAY['1', '2', '3']::jsonb[]);
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens, min(id) AS first
FROM queue.claim('1 second', max_tasks => 3) \gset
SELECT queue.complete(:first, 1);
SELECT id - :first AS nth, lease_until BETWEEN statement_timestamp() + '60 s' AND clock_timestamp() + '60 s' AS extended, cancel_requested
FROM queue.extend_many(:'ids', :'tokens', progress => ARRAY['1', '2', '3']::jsonb[]) ORDER BY 1;
SELECT payload, progress FROM queue.tasks ORDER BY id;
SELECT queue.extend_many('{}', '{}');
-- With skip_locked the same, as long as nobody has locked a task.
SELECT id - :first AS nth, cancel_requested, extended
FROM queue.extend_many(:'ids', :'tokens', progress => ARRAY['4', NULL, '6']::jsonb[], skip_locked => true) ORDER BY 1;
SELECT payload, progress FROM queue.tasks ORDER BY id;
SELECT queue.extend_many('{}', '{}', skip_locked => true);
SELECT pg_temp.refused('SELECT queue.extend_many(''{1}'', ''{1}'', skip_locked => NULL)');
