\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A session whose claim read many dead index entries starts its scans where it found a task, for a while
-- (sql/internal/scan_start.sql). Here the test sets the scan start: no task of priority 5 is older than five minutes. What
-- a claim finds then is not tested here, because it differs between the editions.
CREATE FUNCTION pg_temp.mark(lasts interval, event integer DEFAULT 1000000) RETURNS void
LANGUAGE sql SET datestyle = 'ISO' AS $$
    SELECT set_config('queue_scan_start.any', 'true', false);
    SELECT set_config('queue_scan_start.q' || md5('q'),
                      (event, 5, clock_timestamp() - interval '5 minutes', clock_timestamp() + lasts)::text, false);
$$;
CREATE FUNCTION pg_temp.push(what text, at_priority integer, age interval) RETURNS void LANGUAGE sql AS $$
    SELECT queue.push('q', to_jsonb(what), at_priority, now() - age);
$$;
SELECT queue.create('q', '{"max_running": 100}');

-- A claim that finds nothing after the scan start scans again from the front.
SELECT pg_temp.mark('50 seconds');
SELECT pg_temp.push('0, new', 0, '1 minute');
SELECT payload FROM queue.claim('1 hour', 'q');
SELECT pg_temp.push('5, old', 5, '1 hour');
SELECT payload FROM queue.claim('1 hour', 'q');
SELECT payload FROM queue.claim('1 hour', 'q');

-- A scan start that is over, or that lasts too long because the clock was set, is ignored.
SELECT pg_temp.push('5, old', 5, '1 hour'), pg_temp.push('5, new', 5, '1 minute');
SELECT pg_temp.mark('-1 second');
SELECT payload FROM queue.claim('1 hour', 'q');
SELECT pg_temp.push('5, old', 5, '1 hour');
SELECT pg_temp.mark('1 hour');
SELECT payload FROM queue.claim('1 hour', 'q', 2);

-- A task that this session unblocks in its group is not overtaken.
SELECT queue.configure('q', '{"max_running": null}');
SELECT set_config('queue_scan_start.q' || md5('q'), '', false);
SELECT queue.push('q', '"first of a"', 5, now() - interval '20 minutes', group_key => 'a'),
       queue.push('q', '"second of a"', 5, now() - interval '10 minutes', group_key => 'a'),
       queue.push('q', '"first of b"', 5, now() - interval '1 minute', group_key => 'b');
SELECT id, token, payload FROM queue.claim('1 hour', 'q') \gset
SELECT :'payload' AS payload;
SELECT pg_temp.mark('50 seconds', 0);
SELECT queue.complete(:id, :token);
SELECT payload FROM queue.claim('1 hour', 'q');
SELECT payload FROM queue.claim('1 hour', 'q');

-- A claim that finds nothing else processes an event from before the scan start.
SELECT pg_temp.mark('50 seconds');
SELECT queue.push('q', '"first of c"', 5, group_key => 'c');
SELECT payload FROM queue.claim('1 hour', 'q');

-- A claim that took long does not set a scan start that would be ignored.
CREATE FUNCTION pg_temp.is_kept() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    kept boolean := true;
BEGIN
    IF to_regtype('queue_internal.scan_start') IS NOT NULL THEN
        EXECUTE 'SELECT queue_internal.set_scan_start(''q'', (0, 5, now(), clock_timestamp() + interval ''5 minutes'')::queue_internal.scan_start)';
        EXECUTE 'SELECT (queue_internal.get_scan_start(''q'')).until IS NOT NULL' INTO kept;
    END IF;
    RETURN kept;
END
$$;
SELECT pg_temp.is_kept();

-- Claims by SQL set one if they had to read past many dead entries, those of events included, and not for large batches.
SET queue.fast_path = off;
SELECT queue.create('batches');
SELECT count(*) FROM queue.push_many('batches', array_fill('1'::jsonb, '{1300}'));
SELECT count(*) FROM queue.claim('1 hour', 'batches', 600) AS c, queue.complete(c.id, c.token);
SELECT count(*) FROM queue.claim('1 hour', 'batches', 600) AS c, queue.complete(c.id, c.token);
SELECT current_setting('queue_scan_start.q' || md5('batches'), true) <> '' AS set;
BEGIN;
INSERT INTO queue_internal.events (queue, task_id) SELECT 'batches', -n FROM generate_series(1, 2000) AS n;
DELETE FROM queue_internal.events WHERE queue = 'batches';
SELECT count(*) FROM queue.claim('1 hour', 'batches');
SELECT current_setting('queue_scan_start.q' || md5('batches'), true) <> '' AS set;
ROLLBACK;
-- And past many running tasks.
SELECT queue.create('running');
SELECT count(*) FROM queue.push_many('running', array_fill('1'::jsonb, '{1300}'));
SELECT count(*) FROM queue.claim('1 hour', 'running', 1200);
SELECT current_setting('queue_scan_start.q' || md5('running'), true) <> '' AS set;
SELECT count(*) FROM queue.claim('1 hour', 'running');
SELECT current_setting('queue_scan_start.q' || md5('running'), true) <> '' AS set;
-- Also if no other task is queued.
SELECT queue.create('shallow');
SELECT count(*) FROM queue.push_many('shallow', array_fill('1'::jsonb, '{1201}'));
SELECT count(*) FROM queue.claim('1 hour', 'shallow', 1200);
SELECT count(*) FROM queue.claim('1 hour', 'shallow');
SELECT current_setting('queue_scan_start.q' || md5('shallow'), true) <> '' AS set;
-- It is the place of the task that was claimed, and not of the next one, which may be less urgent or not due.
SELECT queue.create('levels');
SELECT count(*) FROM queue.push_many('levels', array_fill('1'::jsonb, '{1201}'));
SELECT queue.push('levels', '"less urgent"', 5), queue.push('levels', '"not due"', delay => '1 hour');
SELECT count(*) FROM queue.claim('1 hour', 'levels', 1200);
SELECT count(*) FROM queue.claim('1 hour', 'levels');
SELECT queue.push('levels', '"urgent"');
SELECT payload FROM queue.claim('1 hour', 'levels', 2);
RESET queue.fast_path;
