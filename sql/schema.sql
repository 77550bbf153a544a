-- All other names without a schema in this script are those of the server. CREATE EXTENSION sets this too.

SET LOCAL search_path = pg_catalog, pg_temp;

-- Without IF NOT EXISTS, so that it fails if another role has created a schema of that name.

CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'The job queue: its public tables, views and functions.';

CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'Internal objects of queue_ext. Do not call them or rely on them.';
