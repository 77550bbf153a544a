\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Tenants take turns: many tasks of one do not delay the single task of another.
SELECT queue.create('q', '{"fair_groups": true, "max_running_per_group": 100}');
SELECT count(queue.push('q', to_jsonb('a' || n), group_key => 'a')) FROM generate_series(1, 1000) AS n;
SELECT queue.push('q', '"b1"', group_key => 'b'), queue.push('q', '"b2"', group_key => 'b'), queue.push('q', '"c1"', group_key => 'c');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
-- If no other tenant has tasks, one tenant gets all slots. A batch takes turns, too.
SELECT payload FROM queue.claim('1 minute', 'q', 3);
SELECT queue.push('q', '"d1"', group_key => 'd'), queue.push('q', '"d2"', group_key => 'd');
SELECT payload FROM queue.claim('1 minute', 'q', 5);
-- The limit per tenant.
SELECT queue.configure('q', '{"max_running_per_group": 1}');
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
SELECT queue.push('q', '"e1"', group_key => 'e'), queue.push('q', '"e2"', group_key => 'e');
SELECT payload FROM queue.claim('1 minute', 'q', 10);
