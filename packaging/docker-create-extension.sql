-- Run by the image when it makes the cluster, in the database of POSTGRES_DB.
CREATE EXTENSION queue_ext;
\connect template1
CREATE EXTENSION queue_ext;
