-- queue.set
--
--   Touches:  queue_internal.settings

CREATE FUNCTION queue.set(name text, value text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names CONSTANT text[] := '{history_retention, dead_letter_retention, event_retention, history_ahead, max_lease,
                              poll_interval}';
BEGIN
    IF name IS NULL THEN
        PERFORM queue_internal.raise_null('name');
    ELSIF name <> ALL (names) THEN
        PERFORM queue_internal.raise_invalid('name', 'must be one of ' || array_to_string(names, ', '), quote_literal(name));
    END IF;
    BEGIN
        IF value IS NULL OR name LIKE '%retention' AND value = '-1' THEN
            NULL;
        ELSIF name = 'history_ahead' THEN
            IF value::integer NOT BETWEEN 1 AND 365 THEN
                RAISE data_exception;
            END IF;
        -- A time that much later or earlier is still one that the server can store.
        ELSIF extract(epoch FROM value::interval) <= 0
              OR extract(epoch FROM value::interval) > extract(epoch FROM interval '1000 years')
              OR name = 'max_lease' AND extract(epoch FROM value::interval) < 60 THEN
            RAISE data_exception;
        END IF;
    EXCEPTION WHEN data_exception THEN
        PERFORM queue_internal.raise_invalid('value', CASE name
            WHEN 'history_ahead' THEN 'must be from 1 to 365 for history_ahead'
            WHEN 'max_lease' THEN 'must be from 1 minute to 1000 years for max_lease'
            ELSE format('must be a time span of at most 1000 years for %s', name) END, quote_literal(value));
    END;
    DELETE FROM queue_internal.settings AS s WHERE s.name = "set".name;
    INSERT INTO queue_internal.settings SELECT name, value WHERE value IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue.set IS
'Changes a setting of this database. Only the owner of queue_ext can call it.

- name: history_retention, dead_letter_retention, event_retention, history_ahead, max_lease or poll_interval.
- value: for history_ahead a number of days, 1 to 365; else an interval of at most 1000 years, such as "7 days"; for
  max_lease at least 1 minute; for the three retentions also -1, which means for ever. Null restores the default.

Errors: 22004: the name is null. 22023: there is no such setting, or the value is invalid.';
