-- Calls and rounds of maintenance with 120 of everything at once, with the plans that the rounds have made for a few.
\set ON_ERROR_STOP off
SELECT queue.create('many', '{"key_ttl": "1 hour"}') \gset
SELECT count(*) FROM queue.push_many('many', array_fill('{}'::jsonb, ARRAY[480])) \gset
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.extend_many(:'ids', :'tokens') \gset
SELECT count(*) FROM queue.release_many(:'ids', :'tokens') \gset
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.fail_many(:'ids', :'tokens', array_fill('no'::text, ARRAY[120]), permanent => true) \gset
SELECT queue.redrive('many') \gset
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT count(*) FROM queue.claim('1 ms', 'many', 120) \gset
SELECT pg_sleep(0.01) \gset
SELECT queue.reap() \gset
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.complete_many_and_claim(:'ids', :'tokens', max_tasks => 120) \gset
-- Keys, and what is pushed with them.
SELECT count(*) FROM queue.push_tasks((SELECT jsonb_agg(jsonb_build_object('queue', 'many', 'key', 'k' || n, 'start_by', clock_timestamp() + interval '1 second')) FROM generate_series(1, 120) AS n)) \gset
SELECT count(*) FROM queue.push_tasks((SELECT jsonb_agg(jsonb_build_object('queue', 'many', 'key', 'k' || n, 'on_duplicate', 'replace', 'start_by', clock_timestamp() + interval '10 ms')) FROM generate_series(1, 120) AS n)) \gset
SELECT pg_sleep(0.02) \gset
SELECT queue.reap() \gset
SET auto_explain.log_min_duration = -1;
UPDATE queue_internal.keys SET expires_at = clock_timestamp() WHERE queue = 'many';
SET auto_explain.log_min_duration = 0;
-- Predecessors and dependents, members, and tasks that wait for an event.
SELECT array_agg(queue.push('many')) AS ids FROM generate_series(1, 120) \gset
SELECT queue.push('many', after => :'ids') AS last, queue.push('many', after => :'ids') AS cancelled \gset
SELECT queue.cancel(:cancelled) \gset
SELECT queue.create_batch('many') AS batch \gset
SELECT count(queue.push('many', batch => :batch)) FROM generate_series(1, 120) \gset
SELECT queue.seal_batch(:batch) \gset
SELECT queue.push('many') AS first \gset
WITH waiting AS (INSERT INTO queue.tasks (queue, state, admission) SELECT 'many', 'waiting', 2 FROM generate_series(1, 1800) RETURNING id)
INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure) SELECT :first, id, 'cancel' FROM waiting;
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'many', 120) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
WITH suspended AS (
    INSERT INTO queue.tasks (queue, state, admission, token) SELECT 'many', 'waiting', 2, 1 FROM generate_series(1, 120) RETURNING id)
INSERT INTO queue_internal.awaits (task_id, token, queue, event) SELECT id, 1, 'many', 'go' FROM suspended;
SELECT queue.emit('many', 'go') \gset
-- One group with many events, and what is past its time.
SELECT queue.create('group', '{"group_rate_limit": 1, "rate_period": "1 second", "max_running_per_group": 2}') \gset
SELECT count(queue.push('group', group_key => 'g')) FROM generate_series(1, 120) \gset
SELECT count(*) FROM queue.claim('1 minute', 'group', 5) \gset
SELECT queue.configure('group', '{"max_running_per_group": 1}') \gset
SET auto_explain.log_min_duration = -1;
UPDATE queue_internal.group_starts SET expires_at = clock_timestamp() WHERE started_at IN (SELECT started_at FROM queue_internal.group_starts LIMIT 300);
UPDATE queue_internal.events SET due_at = clock_timestamp() + interval '1 year' WHERE queue = 'group';
UPDATE queue.dead_letters SET failed_at = '2000-01-01' WHERE id IN (SELECT id FROM queue.dead_letters LIMIT 300);
UPDATE queue_internal.outcomes SET ended_at = '2000-01-01' WHERE task_id IN (SELECT task_id FROM queue_internal.outcomes LIMIT 300);
UPDATE queue_internal.emitted SET emitted_at = '2000-01-01', created_at = '2000-01-01' WHERE event IN (SELECT event FROM queue_internal.emitted LIMIT 300);
SET auto_explain.log_min_duration = 0;
CALL queue.maintain();
CALL queue.cancel_where('{"queue": "many"}');
CALL queue.maintain();
