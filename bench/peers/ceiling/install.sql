-- A claim that does not wait for the disk, and a durable completion, cannot cost less than a read and an update of a row by
-- its key.
CREATE TABLE rows (id integer PRIMARY KEY, n integer NOT NULL, payload jsonb NOT NULL) WITH (fillfactor = 50);
