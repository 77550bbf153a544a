-- queue_internal.setting(name, fallback)
--
--   Returns the value of the setting "queue.<name>". The fallback repeats the default in src/settings.rs, because the
--   setting does not exist in a session that has not loaded the library.
--   Why PL/pgSQL: a function in SQL would be parsed at every call.

CREATE FUNCTION queue_internal.setting(name text, fallback text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(nullif(current_setting('queue.' || name, true), ''), fallback);
END
$$;
COMMENT ON FUNCTION queue_internal.setting IS 'Returns the value of a setting, or its default.';
