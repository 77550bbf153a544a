-- The image runs this file in the database of POSTGRES_DB when it creates the cluster.
CREATE EXTENSION queue_ext;
\connect template1
CREATE EXTENSION queue_ext;
