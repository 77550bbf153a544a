
-- What only this edition has, or needs (internal/restore_rows.sql merges the marks).
SELECT pg_catalog.pg_extension_config_dump('queue_internal.settings', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.token_mark', '');
$_pgtle_$);
