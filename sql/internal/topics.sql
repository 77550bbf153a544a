-- Topics and patterns of topics, as in AMQP: words of letters, digits, _ and -, separated by dots. In
-- a pattern * stands for one word and # for any number of words, none included.

CREATE FUNCTION queue_internal.check_topic(argument text, value text, wildcards boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    word CONSTANT text := CASE WHEN wildcards THEN '([A-Za-z0-9_-]+|[*]|#)' ELSE '[A-Za-z0-9_-]+' END;
BEGIN
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF value = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(value) > 255 THEN
        PERFORM queue_internal.raise_too_large(argument, '255 bytes', octet_length(value) || ' bytes');
    ELSIF value !~ format('^%s([.]%s)*$', word, word) THEN
        PERFORM queue_internal.raise_invalid(
            argument, 'must be words of A-Z, a-z, 0-9, _ and -'
                      || CASE WHEN wildcards THEN ', or * or #,' ELSE '' END || ' separated by dots',
            quote_literal(left(value, 64)));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_topic IS
    'Checks a topic, or with wildcards a pattern of topics: 1 to 255 bytes of words and dots.';

-- The regular expression matches the topic with a dot before it, so that every word has one. A run of wildcards
-- stands for a number of words, or for that number and more. "More" is written once, at its end, to avoid
-- backtracking.
CREATE FUNCTION queue_internal.topic_regex(pattern text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    regex text := '';
    more  boolean := false;
    word  text;
BEGIN
    FOREACH word IN ARRAY string_to_array(pattern, '.') LOOP
        IF word = '#' THEN
            more := true;
        ELSIF word = '*' THEN
            regex := regex || '[.][^.]+';
        ELSE
            regex := regex || CASE WHEN more THEN '(?:[.][^.]+)*' ELSE '' END || '[.]' || word;
            more := false;
        END IF;
    END LOOP;
    RETURN '^' || regex || CASE WHEN more THEN '(?:[.][^.]+)*' ELSE '' END || '$';
END
$$;
COMMENT ON FUNCTION queue_internal.topic_regex IS
    'Returns the regular expression of a pattern, for a topic with a dot before it.';

-- Rows that are not written by queue.bind() must be valid too, or queue.publish() would fail for all queues.
CREATE FUNCTION queue_internal.is_topic_regex(regex text, pattern text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', pattern, true);
    RETURN regex = queue_internal.topic_regex(pattern);
END
$$;
COMMENT ON FUNCTION queue_internal.is_topic_regex IS
    'Returns whether this is the regular expression of that pattern; raises if the pattern is invalid.';

ALTER TABLE queue.bindings ADD CONSTRAINT bindings_pattern_check
    CHECK (queue_internal.is_topic_regex(topic_regex, topic_pattern));
