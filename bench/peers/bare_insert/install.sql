-- What a push costs besides the row: a table with the columns, defaults, indexes, constraints and
-- storage of queue.tasks, and none of its triggers.
CREATE EXTENSION queue_ext;
CREATE TABLE bare (LIKE queue.tasks INCLUDING ALL);
SELECT format('ALTER TABLE bare SET (%s)', array_to_string(reloptions, ', '))
FROM pg_class WHERE oid = 'queue.tasks'::regclass \gexec
