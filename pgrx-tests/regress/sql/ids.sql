\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Each function that adds several tasks returns their ids in the order in which it got them: the id at a position
-- belongs to the element at that position. An element has its position as its payload, and perhaps a key, which
-- several elements share or which an older task has. The keys descend, because tasks are pushed in the order of the keys.
SELECT queue.create('q');
SELECT queue.create('r');
SELECT queue.push('q', '"older"', key => 'k7', priority => 3) AS older \gset
SELECT queue.push('q', '"first"') AS predecessor \gset

-- How many ids do not belong to their element. "keys" is the key of each element, or null.
CREATE FUNCTION pg_temp.wrong(ids bigint[], keys text[], queues text[] DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) + abs(cardinality(ids) - cardinality(keys))
    FROM ROWS FROM (unnest(ids), unnest(keys)) WITH ORDINALITY AS i (id, key, nth)
    LEFT JOIN queue.tasks AS t ON t.id = i.id
    WHERE t.queue IS DISTINCT FROM coalesce(queues[i.nth], 'q') OR t.key IS DISTINCT FROM i.key
       OR i.key IS NULL AND t.payload <> to_jsonb(i.nth)
$$;
CREATE TEMP TABLE given AS
SELECT array_agg(to_jsonb(n) ORDER BY n) AS payloads, array_agg(NULL::text) AS none,
       array_agg(CASE WHEN n % 3 > 0 THEN 'k' || (60 - n) % 20 END ORDER BY n) AS keys,
       array_agg('g' || (60 - n) % 4 ORDER BY n) AS groups
FROM generate_series(1, 50) AS n;

SELECT pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads)), none) AS plain,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, delay => '1 hour', headers => '{}')), none) AS delayed,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, group_keys => groups)), none) AS grouped,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, after => ARRAY[:predecessor])), none) AS after,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, keys => keys)), keys) AS keys,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, keys => keys, group_keys => groups, after => ARRAY[:predecessor])), keys) AS keys_after,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, keys => keys, on_duplicate => 'replace')), keys) AS replaced,
       pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, keys => keys, on_duplicate => 'reschedule', delay => '1 s')), keys) AS rescheduled
FROM given;
SELECT bool_and(id = :older) AS all_have_the_older_task FROM queue.push_many('q', ARRAY['1', '2']::jsonb[], key => 'k7') AS p (id);

-- push_tasks: queues, priorities and predecessors differ too.
CREATE FUNCTION pg_temp.pushed(more jsonb, with_keys boolean) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_temp.wrong(ARRAY(SELECT queue.push_tasks(tasks)), names, queues)
    FROM (SELECT jsonb_agg(jsonb_build_object('queue', e.queue, 'payload', n, 'priority', -n) || more
                           || CASE WHEN e.key IS NULL THEN '{}' ELSE jsonb_build_object('key', e.key) END ORDER BY n) AS tasks,
                 array_agg(e.key ORDER BY n) AS names, array_agg(e.queue ORDER BY n) AS queues
          FROM given AS g, generate_series(1, 50) AS n,
               LATERAL (SELECT CASE WHEN n % 4 = 0 THEN 'q' ELSE 'r' END,
                               CASE WHEN with_keys THEN g.keys[n] END) AS e (queue, key)) AS t
$$;
SELECT pg_temp.pushed('{}', false) AS plain,
       pg_temp.pushed('{"delay": "1 hour", "group_key": "g"}', false) AS delayed,
       pg_temp.pushed(jsonb_build_object('after', ARRAY[:predecessor]), false) AS after,
       pg_temp.pushed('{}', true) AS keys,
       pg_temp.pushed(jsonb_build_object('after', ARRAY[:predecessor]), true) AS keys_after;

-- Also where a task with the key runs already and another one is pushed to replace it.
SELECT count(*) > 0 AS some_run FROM queue.claim('1 hour', 'q', 1000);
SELECT pg_temp.wrong(ARRAY(SELECT queue.push_many('q', payloads, keys => keys, on_duplicate => 'replace')), keys) AS replaced
FROM given;

-- publish: in the order of the queues' names.
SELECT queue.bind('t', 'r'), queue.bind('t', 'q'), queue.bind('#', 'default');
SELECT ARRAY(SELECT queue.publish('t')) AS ids \gset
SELECT array_agg(t.queue ORDER BY i.nth) AS queues FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS i (id, nth) JOIN queue.tasks AS t USING (id);
SELECT ARRAY(SELECT queue.publish('t', key => 'k1')) AS ids \gset
SELECT array_agg(t.queue ORDER BY i.nth) AS queues FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS i (id, nth) JOIN queue.tasks AS t USING (id);
