\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- No partition is created before the first task, so that a dump can be restored.
SELECT queue_internal.extend_history();
SELECT count(*) FROM queue_internal.history_partitions();

-- A completion without a partition for its day goes to the default partition, and is moved when the partition exists.
SELECT queue.push('default', '"early"');
SELECT queue.complete(id, token) FROM queue.claim('1 minute');
SELECT tableoid::regclass, payload FROM queue.history;
SET datestyle = 'SQL, DMY';
SET timezone = 'Asia/Shanghai';
SELECT queue_internal.extend_history();
SET datestyle = 'ISO';
SET timezone = 'UTC';
SELECT bool_and(pg_get_expr(c.relpartbound, c.oid) = format('FOR VALUES FROM (''%s 00:00:00+00'') TO (''%s 00:00:00+00'')', p.day, p.day + 1)
                AND obj_description(c.oid, 'pg_class') = format('The history of %s (UTC).', p.day)) AS right_days
FROM queue_internal.history_partitions() AS p JOIN pg_class AS c ON c.relname = p.name;
RESET datestyle;
RESET timezone;
SELECT day - (now() AT TIME ZONE 'UTC')::date AS day, attached FROM queue_internal.history_partitions() ORDER BY 1;
SELECT count(*) FROM queue.history_default;
SELECT payload FROM queue.history;
SELECT queue_internal.extend_history();
SELECT count(*) FROM queue_internal.history_partitions();
SELECT count(*) FROM pg_inherits AS i WHERE i.inhparent = 'queue.history'::regclass
AND obj_description(i.inhrelid, 'pg_class') IS NULL;

-- An unattached partition for a future day belongs to a dump that is being restored, so the worker waits for it. One for a
-- past day is ignored.
SELECT 'history_' || to_char((now() AT TIME ZONE 'UTC')::date + 7, 'YYYYMMDD') AS loose \gset
CREATE TABLE queue.:"loose" (LIKE queue.history_default INCLUDING ALL);
SELECT queue_internal.extend_history();
SELECT status, replace(detail, :'loose', 'history_...') AS detail, replace(hint, :'loose', 'history_...') AS hint
FROM queue.health() WHERE name = 'partitions';
DROP TABLE queue.:"loose";
CREATE TABLE queue.history_20200101 (LIKE queue.history_default INCLUDING ALL);
SELECT queue_internal.extend_history();
ALTER TABLE queue.history ATTACH PARTITION queue.history_20200101 FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00');
SELECT queue_internal.extend_history();

-- Retention drops whole days, and deletes old rows of the default partition in batches.
INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, created_at, finished_at, payload)
SELECT n, 'default', 'completed', 0, now(), 1, 1, now(), d, '{}'
FROM generate_series(1000, 1099) AS n, unnest(ARRAY['2020-01-01 12:00+00', '2020-06-01 12:00+00']::timestamptz[]) AS d;
SELECT queue_internal.retire_history(60);
SELECT count(*) FROM queue.history_default;
SELECT queue_internal.retire_history(60);
SELECT count(*) FROM queue.history_default;
SELECT to_regclass('queue.history_20200101'), count(*) FROM queue.history;

-- Dead letters have their own retention.
INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
SELECT n, 'q' || n % 3, 0, now(), 1, 1, now(), now() - n * interval '1 day', '{}' FROM generate_series(1, 60) AS n;
SELECT queue_internal.retire_dead_letters(20), queue_internal.retire_dead_letters(20);
SELECT count(*), max(now() - failed_at) < '31 days' AS young FROM queue.dead_letters;
-- Those that a user's trigger keeps are not tried for ever.
CREATE FUNCTION pg_temp.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE DELETE ON queue.dead_letters FOR EACH ROW EXECUTE FUNCTION pg_temp.keep();
INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
SELECT 100 + n, 'q', 0, now(), 1, 1, now(), now() - interval '40 days', '{}' FROM generate_series(1, 20) AS n;
SELECT queue_internal.retire_dead_letters(20);
-- And they do not keep those of other queues.
DROP TRIGGER keep ON queue.dead_letters;
CREATE TRIGGER keep BEFORE DELETE ON queue.dead_letters FOR EACH ROW WHEN (OLD.queue = 'q') EXECUTE FUNCTION pg_temp.keep();
INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
SELECT 200 + n, 'r', 0, now(), 1, 1, now(), now() - interval '40 days', '{}' FROM generate_series(1, 20) AS n;
SELECT queue_internal.retire_dead_letters(20);
SELECT queue, count(*) FROM queue.dead_letters WHERE failed_at < now() - interval '35 days' GROUP BY queue;
DROP TRIGGER keep ON queue.dead_letters;
SELECT queue_internal.retire_dead_letters(20);

-- Without a background worker, maintain() does all this. Events are processed only at READ COMMITTED.
SELECT count(queue.push('default', group_key => 'g'));
SET default_transaction_isolation = 'repeatable read';
CALL queue.maintain();
SHOW transaction_isolation;
RESET default_transaction_isolation;
SELECT count(*) FROM queue_internal.events;
SELECT pg_temp.refused('CALL queue.maintain()') LIKE '2D000%' AS not_in_a_transaction;
