\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SELECT queue.reap();
SELECT queue.create('twice', '{"max_attempts": 2}');
SELECT queue.push_many('twice', ARRAY['"dead"', '"back"', '"held"']::jsonb[]);
SELECT count(*) FROM queue.claim('1 minute', 'twice', 1, 'w1');
SELECT pg_temp.expire(1), queue.reap();
SELECT count(*) FROM queue.claim('1 minute', 'twice', 3, 'w2');
SELECT pg_temp.expire(1), pg_temp.expire(2);
SELECT queue.reap();
SELECT id, state, attempt, token, lease_until IS NULL AS free, worker, jsonb_path_query_array(errors, '$[*].worker') AS lost_by
FROM queue.tasks ORDER BY id;
SELECT id, attempt, jsonb_path_query_array(errors, '$[*].error') AS errors FROM queue.dead_letters;
-- A late worker gets an error.
SELECT pg_temp.refused('SELECT queue.complete(1, 2)');
SELECT pg_temp.refused('SELECT queue.complete(2, 1)');
-- The task keeps its place before later ones.
SELECT queue.push('twice', '"later"');
SELECT payload, attempt FROM queue.claim('1 minute', 'twice');
SELECT queue.reap();
-- The clock was set back by ten years: a lease from before is cut to max_lease from now. A lease that is long for another
-- reason stays.
UPDATE queue.tasks SET lease_until = lease_until + interval '10 years', updated_at = updated_at + interval '10 years' WHERE id = 2;
UPDATE queue.tasks SET lease_until = lease_until + interval '10 years' WHERE id = 3;
SELECT queue.reap();
SELECT id, lease_until <= clock_timestamp() + interval '7 days' AS cut FROM queue.tasks WHERE state = 'running' ORDER BY id;
-- A claim ends a bounded number of attempts, however many leases have expired, and the next claims end the others. It
-- returns the due task behind them all the same. A queue at its limit is no exception.
SELECT queue.create('burst', '{"max_attempts": 1}'), queue.create('limited', '{"max_attempts": 1, "max_running": 600}');
SELECT count(queue.push(q, n::text::jsonb)) FROM generate_series(1, 600) AS n, unnest('{burst,limited}'::text[]) AS q;
SELECT count(*) FROM queue.claim('1 minute', '{burst,limited}'::text[], 1200);
SELECT queue.push('burst', '"behind"', priority => 1) IS NOT NULL AS pushed;
UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running' AND queue IN ('burst', 'limited');
SELECT payload FROM queue.claim('1 minute', 'burst');
SELECT count(*) FROM queue.claim('1 minute', 'limited');
SELECT queue, count(*) BETWEEN 1 AND 300 AS some FROM queue.dead_letters WHERE queue IN ('burst', 'limited') GROUP BY queue ORDER BY queue;
DO $$
BEGIN
    WHILE EXISTS (SELECT FROM queue.tasks AS t WHERE t.queue IN ('burst', 'limited') AND t.payload <> '"behind"') LOOP
        PERFORM queue.claim('1 minute', '{burst,limited}'::text[]);
    END LOOP;
END $$;
SELECT queue, count(*) FROM queue.dead_letters WHERE queue IN ('burst', 'limited') GROUP BY queue ORDER BY queue;
