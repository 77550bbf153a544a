-- A plain INSERT is a full push, and the quickest way to load a backlog.
TRUNCATE queue.tasks, queue.history;
INSERT INTO queue.tasks (queue, payload)
SELECT 'bench', :'payload'::jsonb FROM generate_series(1, :tasks);
