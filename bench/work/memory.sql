\if :cold
-- Now and then a call falls back to SQL, whose functions are kept in memory from then on.
SET queue.fast_path = off;
SELECT queue.push('bench');
SELECT id, token FROM queue.claim('1 minute', 'bench') \gset
SELECT queue.complete(:id, :token);
RESET queue.fast_path;
\set cold 0
\endif
SELECT queue.push('bench');
SELECT id, token FROM queue.claim('1 minute', 'bench') \gset
SELECT queue.complete(:id, :token);
