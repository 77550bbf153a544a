-- Whatever else the script names without a schema is the server's own. CREATE EXTENSION sees to that too.

SET LOCAL search_path = pg_catalog, pg_temp;

-- The schemas. A plain CREATE SCHEMA: it fails if somebody made one of that name before.

CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'The job queue: tables to read, functions to call.';

CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'What queue_ext is made of. Not to be called or relied upon.';
