\set a random(1, 10000)
\set b random(1, 10000)
SELECT n, payload FROM rows WHERE id = :a;
UPDATE rows SET n = n + 1 WHERE id = :b;
