-- Cron expressions in local time: an implementation in SQL of src/cron.rs, with the same results.
-- next_run.sql handles local times that a time zone skips or repeats, for both.

-- Returns the fields of an expression in upper case: second, minute, hour, day of the month, month, day of the week.
-- Of five fields, the second is 0.
CREATE FUNCTION queue_internal.cron_fields(cron text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plain  CONSTANT text := upper(btrim(cron, E' \t\n\x0b\f\r') COLLATE "C");
    fields text[];
BEGIN
    fields := regexp_split_to_array(CASE plain
        WHEN '@YEARLY' THEN '0 0 1 1 *'
        WHEN '@ANNUALLY' THEN '0 0 1 1 *'
        WHEN '@MONTHLY' THEN '0 0 1 * *'
        WHEN '@WEEKLY' THEN '0 0 * * 0'
        WHEN '@DAILY' THEN '0 0 * * *'
        WHEN '@MIDNIGHT' THEN '0 0 * * *'
        WHEN '@HOURLY' THEN '0 * * * *'
        ELSE plain END, E'[ \t\n\f\r]+');
    RETURN CASE cardinality(fields) WHEN 6 THEN fields WHEN 5 THEN '0'::text || fields END;
END
$$;
COMMENT ON FUNCTION queue_internal.cron_fields IS
    'Returns the six fields of a cron expression; null if it has neither five nor six.';

CREATE FUNCTION queue_internal.cron_number(word text, smallest integer, largest integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF word ~ '^0*[0-9]{1,5}$' AND word::numeric BETWEEN smallest AND largest THEN
        RETURN word::integer;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.cron_number IS
    'Returns a part of a cron field as a number; null if it is none, or out of bounds.';

-- Returns the parsed field as three bit sets:
--   1  its values. A day of the week has eight bits for each kind: 0 every one, 1 to 5 the first to the fifth of the
--      month, 6 the last of the month
--   2  the days of the month with W: the nearest weekday
--   3  1: the last day of the month; 2: the last weekday; 4: any day, "*"; 8: both fields for days must match
CREATE FUNCTION queue_internal.cron_field(field text, number integer) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    month_day CONSTANT boolean := number = 4;
    week_day  CONSTANT boolean := number = 6;
    smallest  CONSTANT integer := CASE WHEN number IN (4, 5) THEN 1 ELSE 0 END;
    largest   CONSTANT integer := ('{59,59,23,31,12,7}'::integer[])[number];
    names     CONSTANT text[] := CASE number
        WHEN 5 THEN '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'
        WHEN 6 THEN '{SUN,MON,TUE,WED,THU,FRI,SAT}' ELSE '{}' END;
    word      CONSTANT text := concat_ws('|', '[0-9]+', nullif(array_to_string(names, '|'), ''));
    -- The regular expression of a part between the operators of an item.
    part      CONSTANT text := CASE number WHEN 4 THEN '[0-9]+W?|LW?' WHEN 6 THEN '(' || word || ')L?' ELSE word END;
    item      text;
    head      text;
    range     text[];
    first     integer;
    last      integer;
    step      integer;
    kind      integer;
    values_   bigint := 0;
    nearest   bigint := 0;
    flags     bigint := 0;
BEGIN
    -- The most common fields, without parsing.
    IF field = '*' THEN
        RETURN ARRAY[CASE WHEN week_day THEN 127 ELSE (1::bigint << largest + 1) - (1 << smallest) END, 0, 4];
    ELSIF queue_internal.cron_number(field, smallest, largest) IS NOT NULL THEN
        RETURN ARRAY[1::bigint << CASE WHEN week_day THEN field::integer % 7 ELSE field::integer END, 0, 0];
    END IF;
    FOREACH item IN ARRAY string_to_array(field, ',') LOOP
        head := CASE WHEN week_day AND strpos(item, '#') > 0 THEN part || '|L' ELSE part END;
        IF item = '' OR item !~ format('^(%1$s)?([*/#?+-](%1$s)?)*$', head) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    IF week_day THEN
        -- At the end of a range, Sunday is 7.
        field := replace(field, '-SUN', '-7');
    END IF;
    FOR i IN 1..cardinality(names) LOOP
        field := replace(field, names[i], (i - 1 + smallest)::text);
    END LOOP;
    IF month_day OR week_day THEN
        field := replace(field, '?', '*');
    END IF;
    IF week_day AND field LIKE '+%' THEN
        flags := 8;
        field := substr(field, 2);
    END IF;
    IF field ~ (CASE WHEN week_day THEN '[+]' ELSE '[?+#]' END) THEN
        RETURN NULL;
    ELSIF field = '*' THEN
        flags := flags | 4;
        field := smallest || '-' || largest;
    END IF;
    FOREACH item IN ARRAY string_to_array(field, ',') LOOP
        CONTINUE WHEN item = '';
        IF month_day AND item = 'L' THEN
            flags := flags | 1;
            CONTINUE;
        ELSIF month_day AND item ~ '^LW' AND item !~ '[/-]' THEN
            flags := flags | 2;
            CONTINUE;
        ELSIF month_day AND strpos(item, 'W') > 0 AND item !~ '[/-]' THEN
            first := queue_internal.cron_number(split_part(item, 'W', 1), smallest, largest);
            IF first IS NULL THEN
                RETURN NULL;
            END IF;
            nearest := nearest | (1::bigint << first);
            CONTINUE;
        END IF;
        -- After #, the number of the weekday in the month; L at the end means the last one.
        head := split_part(item, '#', 1);
        kind := CASE
            WHEN week_day AND item LIKE '%L' THEN 6
            WHEN strpos(item, '#') > 0 THEN queue_internal.cron_number(substr(item, strpos(item, '#') + 1), 1, 5)
            ELSE 0 END;
        step := 1;
        IF strpos(item, '/') > 0 THEN
            range := string_to_array(head, '/');
            step := queue_internal.cron_number(range[2], 1, 65535);
            IF cardinality(range) <> 2 THEN
                RETURN NULL;
            ELSIF range[1] = '*' THEN
                range := ARRAY[smallest, largest]::text[];
            ELSE
                range := string_to_array(range[1], '-');
            END IF;
        ELSIF strpos(item, '-') > 0 THEN
            range := string_to_array(head, '-');
        ELSE
            IF strpos(item, '#') = 0 AND kind = 6 THEN
                head := rtrim(head, 'L');
            END IF;
            range := ARRAY[head, head];
        END IF;
        first := queue_internal.cron_number(range[1], smallest, largest);
        last := queue_internal.cron_number(range[2], smallest, largest);
        -- A null means an invalid number. As in src/cron.rs, the steps must fit into two bytes.
        IF (cardinality(range) = 2 AND first <= last AND kind >= 0
            AND first + step * ((last - first) / step + 1) <= 65535) IS NOT TRUE THEN
            RETURN NULL;
        END IF;
        FOR value IN first..last BY step LOOP
            values_ := values_ | (1::bigint << (kind * 8 + CASE WHEN week_day THEN value % 7 ELSE value END));
        END LOOP;
    END LOOP;
    RETURN ARRAY[values_, nearest, flags];
END
$$;
COMMENT ON FUNCTION queue_internal.cron_field IS
    'Parses a field of a cron expression into bit sets; null if it is invalid.';

CREATE FUNCTION queue_internal.cron_error(cron text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plain  CONSTANT text := upper(btrim(cron, E' \t\n\x0b\f\r') COLLATE "C");
    fields CONSTANT text[] := queue_internal.cron_fields(cron);
    wrong  integer;
BEGIN
    IF plain LIKE '@%' AND fields IS NULL THEN
        RETURN 'The macros are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly.';
    ELSIF fields IS NULL THEN
        RETURN format('It has %s fields instead of five, or six with seconds first.', CASE plain WHEN '' THEN 0
                      ELSE cardinality(regexp_split_to_array(plain, E'[ \t\n\f\r]+')) END);
    END IF;
    wrong := (SELECT min(i) FROM generate_series(1, 6) AS i WHERE queue_internal.cron_field(fields[i], i) IS NULL);
    RETURN format('"%s" in the field %s is not a list of %s, ranges like 1-5, and steps like */2 or 1-5/2.',
                  fields[wrong], names.name, names.contents)
    FROM (VALUES
        (1, 'second', 'numbers from 0 to 59'),
        (2, 'minute', 'numbers from 0 to 59'),
        (3, 'hour', 'numbers from 0 to 23'),
        (4, 'day of the month', 'numbers from 1 to 31, L, LW, numbers with W'),
        (5, 'month', 'numbers from 1 to 12, names from JAN to DEC'),
        (6, 'day of the week', 'numbers from 0 to 7, names from SUN to SAT, either with #1 to #5 or L')
    ) AS names (number, name, contents) WHERE names.number = wrong;
END
$$;
COMMENT ON FUNCTION queue_internal.cron_error IS 'Returns what is wrong with a cron expression; null if it is valid.';

CREATE FUNCTION queue_internal.cron_days(month date, days bigint[], week_days bigint[]) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    any_day   CONSTANT boolean := days[3] & 4 > 0;
    any_week  CONSTANT boolean := week_days[3] & 4 > 0;
    length    CONSTANT integer := (month + interval '1 month')::date - month;
    -- The weekday, 0 for Sunday, of the day before the first.
    before    CONSTANT integer := (extract(dow FROM month)::integer + 6) % 7;
    week_day  integer;
    fits      boolean;
    fits_week boolean;
    found     bigint := 0;
    every     CONSTANT bigint := (1::bigint << length + 1) - 2;
    by_month  bigint := days[1];
BEGIN
    IF any_day AND any_week THEN
        RETURN every;
    END IF;
    week_day := (before + length) % 7;
    IF days[3] & 2 > 0 THEN
        by_month := by_month | (1::bigint << (length - CASE week_day WHEN 6 THEN 1 WHEN 0 THEN 2 ELSE 0 END));
    ELSIF days[3] & 1 > 0 THEN
        by_month := by_month | (1::bigint << length);
    END IF;
    FOR day IN 1..length LOOP
        EXIT WHEN days[2] = 0;
        CONTINUE WHEN (days[2] >> day) & 1 = 0;
        -- Saturday: the day before; Sunday: the day after; but never in another month.
        by_month := by_month | (1::bigint << (day + CASE (before + day) % 7
            WHEN 6 THEN CASE WHEN day > 1 THEN -1 ELSE 2 END
            WHEN 0 THEN CASE WHEN day < length THEN 1 ELSE -2 END
            ELSE 0 END));
    END LOOP;
    IF any_week THEN
        RETURN by_month & every;
    END IF;
    FOR day IN 1..length LOOP
        week_day := (before + day) % 7;
        fits := (by_month >> day) & 1 = 1;
        fits_week := (week_days[1] >> week_day) & 1 = 1
            OR (week_days[1] >> (8 * (1 + (day - 1) / 7) + week_day)) & 1 = 1
            OR day + 7 > length AND (week_days[1] >> (48 + week_day)) & 1 = 1;
        IF any_day AND fits_week
           OR NOT any_day AND (CASE WHEN week_days[3] & 8 > 0 THEN fits AND fits_week ELSE fits OR fits_week END) THEN
            found := found | (1::bigint << day);
        END IF;
    END LOOP;
    RETURN found;
END
$$;
COMMENT ON FUNCTION queue_internal.cron_days IS
    'Returns the days of a month that match a cron expression, as a bit set.';

CREATE FUNCTION queue_internal.cron_next_value(values_ bigint, since integer, largest integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR value IN since..largest LOOP
        IF (values_ >> value) & 1 = 1 THEN
            RETURN value;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.cron_next_value IS
    'Returns the first value of a field that is at least "since"; null if there is none.';

CREATE FUNCTION queue_internal.cron_time(seconds bigint, minutes bigint, hours bigint, since integer)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hour   integer := queue_internal.cron_next_value(hours, since / 3600, 23);
    minute integer;
    second integer;
BEGIN
    IF hour = since / 3600 THEN
        minute := queue_internal.cron_next_value(minutes, since / 60 % 60, 59);
        IF minute = since / 60 % 60 THEN
            second := queue_internal.cron_next_value(seconds, since % 60, 59);
            IF second IS NULL THEN
                minute := queue_internal.cron_next_value(minutes, minute + 1, 59);
            END IF;
        END IF;
        IF minute IS NULL THEN
            hour := queue_internal.cron_next_value(hours, hour + 1, 23);
        END IF;
    END IF;
    RETURN hour * 3600 + coalesce(minute, queue_internal.cron_next_value(minutes, 0, 59)) * 60
           + coalesce(second, queue_internal.cron_next_value(seconds, 0, 59));
END
$$;
COMMENT ON FUNCTION queue_internal.cron_time IS
    'Returns the first matching time of day, in seconds, that is at least "since"; null if there is none.';

CREATE FUNCTION queue_internal.cron_next(cron text, after timestamp) RETURNS timestamp
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fields CONSTANT text[] := queue_internal.cron_fields(cron);
    seconds   bigint;
    minutes   bigint;
    hours     bigint;
    days      CONSTANT bigint[] := queue_internal.cron_field(fields[4], 4);
    months    bigint;
    week_days CONSTANT bigint[] := queue_internal.cron_field(fields[6], 6);
    day       date;
    month     date;
    latest    date;
    named     bigint;
    number    integer;
    time      integer;
BEGIN
    seconds := (queue_internal.cron_field(fields[1], 1))[1];
    minutes := (queue_internal.cron_field(fields[2], 2))[1];
    hours := (queue_internal.cron_field(fields[3], 3))[1];
    months := (queue_internal.cron_field(fields[5], 5))[1];
    IF seconds & minutes & hours & months & days[1] & week_days[1] IS NULL THEN
        -- Only a row that queue.schedule() did not write can have an invalid expression.
        RAISE EXCEPTION 'invalid cron expression'
            USING ERRCODE = 'invalid_parameter_value', DETAIL = queue_internal.cron_error(cron);
    ELSIF NOT isfinite(after) OR extract(year FROM after) NOT BETWEEN 1 AND 4999 THEN
        RETURN NULL;
    END IF;
    after := date_trunc('second', after) + interval '1 second';
    day := after::date;
    time := queue_internal.cron_time(seconds, minutes, hours, extract(epoch FROM after - day::timestamp)::integer);
    IF time IS NULL THEN
        day := day + 1;
        time := queue_internal.cron_time(seconds, minutes, hours, 0);
    END IF;
    -- After 400 years all dates fall on the same weekdays again.
    latest := least(day + 146097, '5000-01-01');
    month := date_trunc('month', day::timestamp)::date;
    number := day - month + 1;
    WHILE month <= latest LOOP
        IF (months >> extract(month FROM month)::integer) & 1 = 1 THEN
            named := queue_internal.cron_days(month, days, week_days);
            number := queue_internal.cron_next_value(named, number, 31);
            IF month + number - 1 > latest THEN
                RETURN NULL;
            ELSIF month + number - 1 = day THEN
                RETURN day::timestamp + make_interval(secs => time);
            ELSIF number IS NOT NULL THEN
                RETURN (month + number - 1)::timestamp
                       + make_interval(secs => queue_internal.cron_time(seconds, minutes, hours, 0));
            END IF;
        END IF;
        month := (month + interval '1 month')::date;
        number := 1;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.cron_next IS
    'Returns the first local time after the given one that a cron expression matches; null if there is none.';
