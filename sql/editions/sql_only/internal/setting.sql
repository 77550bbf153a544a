-- queue_internal.setting(name, fallback)
--
--   Returns the value of the setting "queue.<name>": from queue_internal.settings, else from the session, else the
--   default. Only sessions of superusers can set max_lease.
--   Why a table: where the library is not loaded, only a superuser can give a database or a role a
--   setting of that name.

CREATE TABLE queue_internal.settings (
    name  text COLLATE "C" NOT NULL PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE queue_internal.settings IS 'The settings that were changed. Change them with queue.set().';

CREATE FUNCTION queue_internal.setting(name text, fallback text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((SELECT s.value FROM queue_internal.settings AS s WHERE s.name = setting.name),
                    CASE WHEN name <> 'max_lease' OR current_setting('is_superuser') = 'on'
                         THEN nullif(current_setting('queue.' || name, true), '') END, fallback);
END
$$;
COMMENT ON FUNCTION queue_internal.setting IS 'Returns the value of a setting, or its default.';
