-- queue_internal.setting(name, fallback)
--
--   The value of the setting "queue.<name>": what queue_internal.settings says, else what the session has
--   set, else the default. The limit of leases is not for sessions to set, unless they are a superuser's.
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
COMMENT ON FUNCTION queue_internal.setting IS 'The value of a setting, or its default.';
