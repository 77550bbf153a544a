-- A plain INSERT works like a push, and is the fastest way to load a backlog.
TRUNCATE queue.tasks, queue.history;
INSERT INTO queue.tasks (queue, payload, group_key)
SELECT 'bench', :'payload'::jsonb, 'g' || n % nullif(:groups, 0) FROM generate_series(1, :tasks) AS n;
