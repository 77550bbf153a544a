TRUNCATE rows;
INSERT INTO rows SELECT i, 0, :'payload'::jsonb FROM generate_series(1, 10000) AS i;
