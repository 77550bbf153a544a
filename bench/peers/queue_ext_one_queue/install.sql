-- A worker whose role has a right on this queue alone. Roles belong to all databases, and these files are run more than once.
CREATE EXTENSION queue_ext;
SELECT queue.create('bench');
SELECT 'CREATE ROLE bench_worker' WHERE to_regrole('bench_worker') IS NULL \gexec
SELECT queue.grant_worker('bench_worker', 'bench');
