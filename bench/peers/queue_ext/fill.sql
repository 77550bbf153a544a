-- A plain INSERT works like a push, and is the fastest way to load a backlog.
TRUNCATE queue.tasks, queue.history;
INSERT INTO queue.tasks (queue, payload)
SELECT 'bench', :'payload'::jsonb FROM generate_series(1, :tasks);
