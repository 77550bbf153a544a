-- Claiming and completing a task costs at least two commits. Their cost is measured as two updates of one row by its key,
-- with rows as large as a task.
CREATE TABLE rows (id integer PRIMARY KEY, n integer NOT NULL, payload jsonb NOT NULL) WITH (fillfactor = 50);
-- Few enough that full pages are soon written to the WAL after each checkpoint, and many enough that two sessions rarely
-- update the same row.
