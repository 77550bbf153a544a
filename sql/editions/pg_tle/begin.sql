-- queue_ext @CARGO_VERSION@, the SQL-only edition as an extension, for servers with pg_tle. Run it as a role that may
-- install extensions there (pgtle_admin), then run CREATE EXTENSION queue_ext.
--
-- Made by "make portable" out of the files in sql/.

SELECT pgtle.install_extension('queue_ext', '@CARGO_VERSION@', 'a job queue that lives inside Postgres (SQL-only edition)',
$_pgtle_$
