\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A task with predecessors.
SELECT queue.push('default', '"bake"') AS bake \gset
SELECT queue.push('default', '"whip"') AS whip \gset
SELECT queue.push('default', '"serve"', after => ARRAY[:bake, :whip]) AS serve \gset
SELECT payload, state FROM queue.tasks ORDER BY id;
SELECT task_id = :serve AS serve, queue, predecessor_id - :bake AS predecessor, outcome, on_failure, is_batch
FROM queue.dependencies ORDER BY predecessor_id;
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(:bake, 1);
SELECT predecessor_id - :bake AS predecessor, outcome FROM queue.dependencies WHERE task_id = :serve ORDER BY predecessor_id;
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(:whip, 1);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(:serve, 1), count(*) AS left_behind FROM queue_internal.dependencies;
SELECT count(*) FROM queue.dependencies;
-- A completed predecessor does not block the task. An unknown one is refused.
SELECT queue.push('default', '"coffee"', after => ARRAY[:serve, :serve]) AS coffee \gset
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute');
SELECT left(pg_temp.refused($$SELECT queue.push('default', after => '{4711}')$$), 60);
SELECT queue.push('default', '"of nobody"', after => '{}') AS free \gset
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute');

-- If a predecessor fails, the task is cancelled, fails or continues, depending on the option of queue or push.
SELECT queue.create('q', '{"max_attempts": 1}');
SELECT queue.push('q', '"a"') AS a \gset
SELECT queue.push('q', '"cancelled"', after => ARRAY[:a]) AS b,
       queue.push('q', '"failed"', after => ARRAY[:a], on_predecessor_failure => 'fail') AS c,
       queue.push('q', '"let go"', after => ARRAY[:a], on_predecessor_failure => 'continue') AS d \gset
-- This propagates along a chain.
SELECT queue.push('q', '"cancelled too"', after => ARRAY[:b]), queue.push('q', '"let go too"', after => ARRAY[:c], on_predecessor_failure => 'continue');
SELECT queue.fail(id, token, 'burnt') FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q', 10);
SELECT payload, state, errors -> -1 ->> 'error' AS error FROM queue.all_tasks WHERE queue = 'q' ORDER BY id;
-- A cancelled predecessor counts as failed.
SELECT queue.push('q', '"e"') AS e \gset
SELECT queue.push('q', '"f"', after => ARRAY[:e]) AS f \gset
SELECT queue.cancel(:e);
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT state, errors -> -1 ->> 'error' AS error FROM queue.get(:f);
-- So does a purged predecessor.
SELECT queue.create('purged');
SELECT queue.push('purged') AS p \gset
SELECT queue.push('q', '"of a purged one"', after => ARRAY[:p]) AS o \gset
SELECT queue.purge('purged');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT state, errors -> -1 ->> 'error' AS error FROM queue.get(:o);
SELECT queue.configure('purged', '{"keep_history": false}');
SELECT queue.push('purged') AS p \gset
SELECT queue.push('q', '"of one without a trace"', after => ARRAY[:p]) AS o \gset
SELECT queue.cancel(:p);
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT state, errors -> -1 ->> 'error' AS error FROM queue.get(:o);
-- A failed attempt that is retried does not.
SELECT queue.configure('q', '{"max_attempts": 2, "backoff": {"base": "0"}}');
SELECT queue.push('q', '"g"') AS g \gset
SELECT queue.push('q', '"h"', after => ARRAY[:g]) AS h \gset
SELECT queue.fail(id, token, 'once') FROM queue.claim('1 minute', 'q');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'q');
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'q');
-- A waiting task can be cancelled, and joins its group when it is unblocked.
SELECT queue.push('q', '"i"', group_key => 'x') AS i \gset
SELECT queue.push('q', '"j"', group_key => 'x', after => ARRAY[:i]) AS j, queue.push('q', '"k"', group_key => 'x') AS k \gset
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'q', 10);
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'q', 10);
SELECT queue.complete(id, token), payload FROM queue.claim('1 minute', 'q', 10);

-- Two thousand predecessors, and a chain of two thousand.
SELECT queue.push('default', '"fan-in"', after => ARRAY(SELECT queue.push_many('q', array_fill('{}'::jsonb, ARRAY[2000])))) AS fan_in \gset
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'q', 2000);
CALL queue.maintain();
SELECT payload FROM queue.claim('1 minute');
DO $$
DECLARE
    last bigint := queue.push('q', '"chain"');
BEGIN
    FOR i IN 2..2000 LOOP
        last := queue.push('q', '"chain"', after => ARRAY[last]);
    END LOOP;
END $$;
SELECT count(queue.cancel(min)) FROM (SELECT min(id) FROM queue.tasks WHERE queue = 'q' AND payload = '"chain"') AS t;
CALL queue.maintain();
SELECT state, count(*) FROM queue.all_tasks WHERE payload = '"chain"' GROUP BY state;
SELECT count(*) FROM queue_internal.dependencies;

-- A task cannot wait for itself, even if its id was guessed.
SELECT pg_temp.refused(format('SELECT queue.push(''default'', after => ARRAY[%s])', last_value + 1)) FROM queue.tasks_id_seq;

-- An operator of a queue sees what its tasks wait for, and nothing of those of other queues.
BEGIN;
CREATE ROLE regress_operator;
SELECT queue.grant_operator('regress_operator', 'q'), queue.push('default') AS first \gset
SELECT queue.push('q', after => ARRAY[:first]) AS own, queue.push('default', after => ARRAY[:first]) \gset
SET LOCAL ROLE regress_operator;
SELECT task_id = :own AS own, queue, predecessor_id = :first AS first, outcome FROM queue.dependencies;
ROLLBACK;
