\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- The tenants take turns: the many tasks of one do not delay the one task of another.
SELECT queue.create('q', '{"fair_groups": true, "max_running_per_group": 100}');
SELECT count(queue.push('q', to_jsonb('a' || n), group_key => 'a')) FROM generate_series(1, 1000) AS n;
SELECT queue.push('q', '"b1"', group_key => 'b'), queue.push('q', '"b2"', group_key => 'b'), queue.push('q', '"c1"', group_key => 'c');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
SELECT payload FROM queue.claim('1 minute', 'q');
-- When nobody else has anything to do, one tenant has it all; and a batch takes turns, too.
SELECT payload FROM queue.claim('1 minute', 'q', 3);
SELECT queue.push('q', '"d1"', group_key => 'd'), queue.push('q', '"d2"', group_key => 'd');
SELECT payload FROM queue.claim('1 minute', 'q', 5);
-- As many of a tenant run as the limit allows.
SELECT queue.configure('q', '{"max_running_per_group": 1}');
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
SELECT queue.push('q', '"e1"', group_key => 'e'), queue.push('q', '"e2"', group_key => 'e');
SELECT payload FROM queue.claim('1 minute', 'q', 10);
