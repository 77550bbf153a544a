\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A publish pushes a task to each queue that is bound to the topic.
SELECT queue.create('mail'), queue.create('billing'), queue.create('audit');
SELECT queue.bind('orders.created', 'mail'), queue.bind('orders.*', 'billing'), queue.bind('#', 'audit');
SELECT count(*) FROM queue.publish('orders.created', '{"order": 7}');
SELECT id, queue, payload, headers FROM queue.tasks ORDER BY id;
SELECT count(*) FROM queue.publish('orders.eu.created');
SELECT queue, headers FROM queue.tasks WHERE id > 3;

-- A queue gets one task even if several of its patterns match. Binding twice changes nothing.
SELECT queue.bind('orders.#', 'mail'), queue.bind('orders.#', 'mail'), queue.bind('*.created', 'mail');
SELECT count(*) FROM queue.bindings WHERE queue = 'mail';
SELECT count(*) FROM queue.publish('orders.created');
SELECT queue FROM queue.tasks WHERE id > 4 ORDER BY id;

-- The other arguments are those of queue.push. A header named topic is replaced.
SELECT queue.purge(name) IS NOT NULL AS purged FROM queue.queues WHERE name <> 'default';
SELECT count(*) FROM queue.publish('orders.created', '1', priority => 3, run_at => '2100-01-01', max_attempts => 2, headers => '{"user": "u", "topic": "x"}');
SELECT queue, priority, extract(year FROM run_at) AS year, max_attempts, headers FROM queue.tasks ORDER BY id;

-- If no queue is bound, nothing happens, but the arguments are still checked.
SELECT queue.unbind('#', 'audit'), queue.unbind('#', 'audit');
SELECT * FROM queue.publish('nobody.cares');
SELECT pg_temp.refused($$SELECT queue.publish('nobody.cares', priority => NULL)$$);
SELECT pg_temp.refused($$SELECT queue.publish('orders.*')$$);
SELECT pg_temp.refused($$SELECT queue.publish('orders..created')$$);
SELECT pg_temp.refused($$SELECT queue.bind('orders.cr*', 'mail')$$);
SELECT pg_temp.refused($$SELECT queue.bind('orders', 'nowhere')$$);

-- Patterns and topics.
SELECT p.pattern, string_agg(t.topic, '  ' ORDER BY t.topic) AS matches
FROM (VALUES ('orders'), ('orders.*'), ('orders.#'), ('#'), ('*'), ('*.*'), ('#.created'), ('orders.#.created'), ('#.#'),
             ('*.#'), ('#.*'), ('#.*.#'), ('orders.*.#.*'), ('#.eu.#')) AS p (pattern)
LEFT JOIN (VALUES ('orders'), ('orders.created'), ('orders.eu.created'), ('orders.eu.de.created'), ('created'), ('ordersx.created'), ('Orders')) AS t (topic)
    ON ('.' || t.topic) ~ queue_internal.topic_regex(p.pattern)
GROUP BY p.pattern ORDER BY p.pattern COLLATE "C";
-- Compared with a word-by-word definition, for all short patterns and topics.
CREATE FUNCTION pg_temp.matches(pattern text[], topic text[]) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE
        WHEN cardinality(pattern) = 0 THEN cardinality(topic) = 0
        WHEN pattern[1] = '#' THEN pg_temp.matches(pattern[2:], topic) OR cardinality(topic) > 0 AND pg_temp.matches(pattern, topic[2:])
        ELSE cardinality(topic) > 0 AND pattern[1] IN ('*', topic[1]) AND pg_temp.matches(pattern[2:], topic[2:]) END
$$;
WITH RECURSIVE patterns (words) AS (
    SELECT '{}'::text[] UNION ALL SELECT words || w FROM patterns, unnest('{a,b,*,#}'::text[]) AS w WHERE cardinality(words) < 3
), topics (words) AS (
    SELECT '{}'::text[] UNION ALL SELECT words || w FROM topics, unnest('{a,b}'::text[]) AS w WHERE cardinality(words) < 4
)
SELECT count(*) AS compared,
       count(*) FILTER (WHERE pg_temp.matches(p.words, t.words)
           <> (('.' || array_to_string(t.words, '.')) ~ queue_internal.topic_regex(array_to_string(p.words, '.')))) AS different
FROM patterns AS p, topics AS t WHERE cardinality(p.words) > 0 AND cardinality(t.words) > 0;

-- The slowest possible pattern is matched quickly.
SELECT queue.bind(rtrim(repeat('#.*.', 63), '.'), 'audit'), queue.bind(rtrim(repeat('#.a.', 63), '.'), 'audit');
SET statement_timeout = '20s';
SELECT count(*) FROM queue.publish(rtrim(repeat('a.', 127), '.') || 'b');
RESET statement_timeout;

-- A publish that rolls back pushes nothing.
BEGIN;
SELECT count(*) FROM queue.publish('orders.created');
ROLLBACK;
SELECT count(*) FROM queue.tasks WHERE headers->>'topic' = 'orders.created' AND run_at < '2100-01-01';

-- Every publish reads all bindings, so a queue can have at most 1000. Binding a bound pattern again does not count.
SELECT queue.create('many');
SELECT count(queue.bind('n' || n, 'many')) FROM generate_series(1, 1000) AS n;
SELECT pg_temp.refused($$SELECT queue.bind('one.more', 'many')$$);
SELECT queue.bind('n7', 'many'), queue.unbind('n8', 'many'), queue.bind('one.more', 'many');
SELECT queue.drop('many');

-- Dropping a queue removes its bindings.
SELECT queue.drop('audit', force => true), queue.drop('billing', force => true);
SELECT topic_pattern, queue FROM queue.bindings ORDER BY 1, 2;

-- standard_conforming_strings of the session changes nothing.
SET standard_conforming_strings = off;
SELECT queue.create('strings'), queue.bind('strings.*.news.#', 'strings');
SELECT topic_regex FROM queue.bindings WHERE queue = 'strings';
SELECT topic, count(id) FROM unnest('{strings.a.news.b.c,strings.a.newsb,stringsxa.news}'::text[]) AS topic
LEFT JOIN LATERAL queue.publish(topic) AS id ON true GROUP BY topic ORDER BY topic;
SELECT pg_temp.refused($$CALL queue.cancel_where(jsonb_build_object('key', 'x' || chr(92)))$$);
SET standard_conforming_strings = on;
SELECT count(*) AS published FROM queue.publish('strings.a.news');
