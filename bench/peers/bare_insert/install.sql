-- For the cost of a push beyond its row: a table with the columns, defaults, indexes, constraints and storage of
-- queue.tasks, without its triggers.
CREATE EXTENSION queue_ext;
CREATE TABLE bare (LIKE queue.tasks INCLUDING ALL);
SELECT format('ALTER TABLE bare SET (%s)', array_to_string(reloptions, ', '))
FROM pg_class WHERE oid = 'queue.tasks'::regclass \gexec
