\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A failed task returns to its queue and waits for its backoff.
SELECT queue.create('mail', '{"max_attempts": 3, "backoff": {"base": "10 s", "max": "15 s", "jitter": 0}}');
SELECT queue.push('mail', '"letter"') AS id \gset
SELECT token FROM queue.claim('1 minute', 'mail', worker => 'w1') \gset
SELECT queue.fail(:id, :token, 'no such host');
SELECT state, attempt, worker, lease_until, run_at - updated_at BETWEEN '9.9 s' AND '10.1 s' AS waits, errors #- '{0,at}' #- '{0,claimed_at}' AS errors
FROM queue.tasks;
SELECT * FROM queue.claim('1 minute', 'mail');
-- The old token is stale.
SELECT pg_temp.refused(format('SELECT queue.fail(%s, %s, %L)', :id, :token, 'again'));

-- The backoff grows with each failure up to its maximum. The worker can choose another delay.
UPDATE queue.tasks SET run_at = now();
SELECT token FROM queue.claim('1 minute', 'mail') \gset
SELECT queue.fail(:id, :token, 'timeout');
SELECT run_at - updated_at BETWEEN '14.9 s' AND '15.1 s' AS waits FROM queue.tasks;
UPDATE queue.tasks SET run_at = now();
SELECT token FROM queue.claim('1 minute', 'mail') \gset
-- After the last attempt the task moves to the dead letters with every error.
SELECT queue.fail(:id, :token, 'gave up');
SELECT count(*) FROM queue.tasks;
SELECT queue, attempt, token, jsonb_path_query_array(errors, '$[*].error') AS errors FROM queue.dead_letters;
SELECT pg_temp.refused(format('SELECT queue.fail(%s, %s, %L)', :id, :token, 'x'));

SELECT queue.push('mail') AS id \gset
SELECT token FROM queue.claim('1 minute', 'mail') \gset
SELECT queue.fail(:id, :token, 'bad address', permanent => true);
SELECT queue.push('mail') AS id \gset
SELECT token FROM queue.claim('1 minute', 'mail') \gset
SELECT queue.fail(:id, :token, 'busy', retry_in => '3 hours');
SELECT run_at - updated_at BETWEEN '2:59:59' AND '3:00:01' AS waits FROM queue.tasks;
-- A task with its own max_attempts.
SELECT queue.push('mail', max_attempts => 1) AS id \gset
SELECT token FROM queue.claim('1 minute', 'mail') \gset
SELECT queue.fail(:id, :token, 'once is enough');

-- The kinds of backoff, attempt by attempt.
SELECT kind, array_agg(queue_internal.backoff(q, jsonb_populate_record(NULL::queue.tasks, jsonb_build_object('attempt', n))) ORDER BY n) AS waits
FROM generate_series(1, 5) AS n,
     (VALUES ('fixed'), ('linear'), ('exponential')) AS k (kind),
     LATERAL (SELECT jsonb_populate_record(r, jsonb_build_object('backoff_kind', kind)) AS q
              FROM queue.queues AS r WHERE r.name = 'mail') AS made
GROUP BY kind ORDER BY kind;
-- Jitter only shortens the delay, and a huge attempt number causes no overflow.
SELECT bool_and(wait BETWEEN '7.5 s' AND '15 s') AS within, count(DISTINCT wait) > 900 AS spread
FROM queue.queues AS r, generate_series(9001, 10000) AS n,
     LATERAL (SELECT queue_internal.backoff(jsonb_populate_record(r, '{"backoff_jitter": 0.5}'), jsonb_populate_record(NULL::queue.tasks, jsonb_build_object('attempt', n))) AS wait) AS w
WHERE r.name = 'mail';

-- A released task keeps its place, and the attempt does not count.
SELECT queue.create('calm');
SELECT queue.push_many('calm', ARRAY['"first"', '"second"']::jsonb[]);
SELECT id, token FROM queue.claim('1 minute', 'calm') \gset
SELECT queue.release(:id, :token);
SELECT pg_temp.refused(format('SELECT queue.release(%s, %s)', :id, :token));
SELECT id, token, payload, attempt FROM queue.claim('1 minute', 'calm') \gset
SELECT :'payload' AS payload, :attempt AS attempt, :token AS token;
SELECT queue.release(:id, :token, '1 hour');
SELECT payload, attempt FROM queue.claim('1 minute', 'calm', 10);

-- The first ten and the last ten errors are kept.
SELECT queue.create('often', '{"max_attempts": 1000, "backoff": {"base": "0"}}');
SELECT queue.push('often') AS id \gset
DO $$
BEGIN
    FOR i IN 1 .. 33 LOOP
        PERFORM queue.fail(c.id, c.token, 'error ' || i) FROM queue.claim('1 minute', 'often') AS c;
    END LOOP;
END
$$;
SELECT jsonb_array_length(errors), jsonb_path_query_array(errors, '$[*].attempt') FROM queue.tasks WHERE id = :id;

-- Of a long error the beginning is kept, in whole characters, because each attempt writes all errors again.
SELECT queue.create('long', '{"max_attempts": 1000, "backoff": {"base": "0"}}');
SELECT queue.push('long') AS id \gset
DO $$
BEGIN
    FOR i IN 1 .. 20 LOOP
        PERFORM queue.fail(c.id, c.token, repeat(U&'\00e9', 65535 + i)) FROM queue.claim('1 minute', 'long') AS c;
    END LOOP;
END
$$;
SELECT a.number, length(e.error), octet_length(e.error), regexp_replace(e.error, '^[^ ]+', '') AS mark
FROM queue.tasks AS t, LATERAL jsonb_array_elements(t.errors) WITH ORDINALITY AS a (element, number),
     LATERAL (SELECT a.element ->> 'error' AS error) AS e
WHERE t.id = :id AND a.number IN (1, 2, 20) ORDER BY a.number;

-- Details are stored with the error.
SELECT queue.create('detailed', '{"max_attempts": 2, "backoff": {"base": "0"}}');
SELECT queue.push('detailed') AS id \gset
SELECT queue.fail(id, token, 'no answer', details => '{"url": "http://a.example", "status": 503}') FROM queue.claim('1 minute', 'detailed');
SELECT queue.fail(id, token, 'broken') FROM queue.claim('1 minute', 'detailed');
SELECT e.value -> 'attempt' AS attempt, e.value -> 'error' AS error, e.value -> 'details' AS details, e.value ? 'details' AS has_details
FROM queue.dead_letters AS d, jsonb_array_elements(d.errors) AS e WHERE d.id = :id;

-- Many at once: each task as in fail, and those with a stale token are left out.
SELECT queue.create('lot', '{"max_attempts": 2, "backoff": {"base": "0"}}');
SELECT count(queue.push('lot', to_jsonb(n), max_attempts => CASE n WHEN 2 THEN 1 END)) FROM generate_series(1, 4) AS n;
SELECT array_agg(id ORDER BY id DESC) AS ids, array_agg(token ORDER BY id DESC) AS tokens FROM queue.claim('1 minute', 'lot', 4) \gset
SELECT queue.cancel((:'ids'::bigint[])[1]) AS fourth, queue.end_lease((:'ids'::bigint[])[2]) AS third;
SELECT (queue.get(f.id)).payload, f.state FROM queue.fail_many(:'ids', :'tokens', '{four,three,two,one}', details => ARRAY['44', NULL, NULL, '11']::jsonb[]) AS f;
SELECT payload, state, errors -> -1 ->> 'error' AS error, errors -> -1 -> 'details' AS details FROM queue.all_tasks WHERE queue = 'lot' ORDER BY id;
SELECT count(*) FROM queue.fail_many(:'ids', :'tokens', '{a,b,c,d}');
SELECT count(*) FROM queue.fail_many('{}', '{}', '{}');
SELECT array_agg(id ORDER BY id DESC) AS ids, array_agg(token ORDER BY id DESC) AS tokens FROM queue.claim('1 minute', 'lot', 4) \gset
SELECT (queue.get(r.id)).payload FROM queue.release_many(:'ids'::bigint[] || :'ids'::bigint[], :'tokens'::bigint[] || :'tokens'::bigint[], '1 hour') AS r (id);
SELECT payload, state, attempt, run_at > now() + interval '50 minutes' AS in_an_hour FROM queue.tasks WHERE queue = 'lot' ORDER BY id;
SELECT count(*) FROM queue.release_many(:'ids', :'tokens');
