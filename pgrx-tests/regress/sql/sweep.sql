\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- The sweep reads a piece of each queue in each turn. It ends with the queue that takes the most turns. It reads the other
-- queues again meanwhile only if asked to.
SELECT queue.create('a'), queue.create('b'), queue.create('c');
INSERT INTO queue.tasks (queue, group_key)
SELECT q.name, 'g' || n FROM (VALUES ('a', 350), ('b', 150), ('c', 250)) AS q (name, count), generate_series(1, q.count) AS n;
DELETE FROM queue_internal.events;
CREATE FUNCTION pg_temp.turns(again boolean, OUT turns integer, OUT events bigint) LANGUAGE plpgsql AS $$
DECLARE
    place queue_internal.sweep_position;
BEGIN
    turns := 0;
    LOOP
        place := queue_internal.sweep(place, 50, again);
        turns := turns + (place.queue IS NULL)::integer;
        EXIT WHEN place IS NULL OR turns > 100;
    END LOOP;
    events := (SELECT count(*) FROM queue_internal.events);
END
$$;
SELECT * FROM pg_temp.turns(true);
DELETE FROM queue_internal.events;
SELECT * FROM pg_temp.turns(false);
-- The second turn reads only what the first one left out.
DELETE FROM queue_internal.events;
DO $$
DECLARE
    place queue_internal.sweep_position;
BEGIN
    LOOP
        place := queue_internal.sweep(place, 50, false);
        IF place.queue IS NULL AND place.is_first_turn THEN
            DELETE FROM queue_internal.events;
        END IF;
        EXIT WHEN place IS NULL;
    END LOOP;
END
$$;
SELECT queue, count(*) FROM queue_internal.events GROUP BY 1 ORDER BY 1;
SELECT queue.drop('a', true), queue.drop('b', true), queue.drop('c', true);

-- An outcome is deleted after a day, but not while a task may still need it: a restored dump can bring the task later.
INSERT INTO queue_internal.outcomes (task_id, outcome, ended_at)
VALUES (1001, 'completed', now() - interval '2 days'), (1002, 'completed', now() - interval '2 days');
INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure, restored_at) VALUES (1001, 2001, 'fail', now());
SELECT * FROM pg_temp.turns(false);
SELECT task_id FROM queue_internal.outcomes ORDER BY task_id;
INSERT INTO queue.tasks (id, queue, state) VALUES (2001, 'default', 'waiting');
SELECT * FROM pg_temp.turns(false);
SELECT id FROM queue.claim('1 minute');
