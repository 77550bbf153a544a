TRUNCATE rows;
INSERT INTO rows SELECT i, 0, :'payload'::jsonb FROM generate_series(1, 100000) AS i;
