-- Two commits a task are the least that claiming and completing can cost. What two commits cost is
-- measured as twice an update of one row by its key, of rows as large as a task.
CREATE TABLE rows (id integer PRIMARY KEY, n integer NOT NULL, payload jsonb NOT NULL) WITH (fillfactor = 50);
-- Few enough that their pages are soon written whole to the WAL, once after each checkpoint, and many
-- enough that hardly ever two sessions want the same one.
