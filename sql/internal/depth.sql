-- The depth of a queue: how many of its tasks are queued, scheduled and blocked ones included. "max_queued" bounds it.
--
--   The native fast path reads the depth from the counters behind queue.stats (known_depth). The SQL implementation counts,
--   up to the bound, in the indexes on the order and on groups.
--   Cost:     a session that had to read more than a hundred index entries, those of finished tasks included, reuses the
--             number for twenty times as long as counting took, up to a minute, and adds what it inserts itself. So
--             pushes to a queue with a million tasks spend a twentieth of their time on counting. The number is kept in a
--             setting, like the scan start. A session can change that setting, and so exceed the bound on purpose
--   Exact:    except for that, and for tasks that other transactions push or claim concurrently. No push waits for another

-- A call adds "more" tasks. The statement has inserted "inserted" of them already, which are queued.
CREATE FUNCTION queue_internal.check_depth(source queue.queues, more bigint, inserted bigint DEFAULT 0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    depth bigint;
BEGIN
    IF more = 0 THEN
        RETURN;
    END IF;
    depth := coalesce(queue_internal.known_depth(source.name), queue_internal.depth_in_session(source, inserted)) - inserted;
    IF depth + more > source.max_queued THEN
        PERFORM queue_internal.raise_queue_full(source, depth, more);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_depth IS 'Raises QX006 if a queue with max_queued would have more tasks than that.';

CREATE FUNCTION queue_internal.depth_in_session(source queue.queues, inserted bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name    CONSTANT text := 'queue_depth.q' || md5(source.name);
    begun   CONSTANT timestamptz := clock_timestamp();
    longest CONSTANT interval := '1 minute';
    entries CONSTANT bigint := queue_internal.depth_entries();
    -- The depth, and until when it is used.
    kept    text[] := nullif(current_setting(name, true), '');
    depth   bigint;
    until   timestamptz;
BEGIN
    IF kept[2]::timestamptz BETWEEN begun AND begun + longest THEN
        depth := kept[1]::bigint + inserted;
        until := CASE WHEN inserted > 0 THEN kept[2] END;
    ELSE
        depth := queue_internal.count_depth(source);
        IF depth > 100 OR queue_internal.depth_entries() > entries + 100 THEN
            until := begun + least(20 * (clock_timestamp() - begun), longest);
        END IF;
    END IF;
    IF until IS NOT NULL THEN
        PERFORM set_config(name, ARRAY[depth::text, until::text]::text, false);
    END IF;
    RETURN depth;
END
$$;
COMMENT ON FUNCTION queue_internal.depth_in_session IS
    'Counts the queued tasks of a queue, or returns the recent count of this session.';

CREATE FUNCTION queue_internal.depth_entries() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_internal.entries_passed()
         + coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_group')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.depth_entries IS
    'Returns how many index entries this transaction has read, among them those that it counted.';

CREATE FUNCTION queue_internal.count_depth(source queue.queues) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_blocked CONSTANT smallint := 2;
    most       CONSTANT bigint := source.max_queued::bigint + 1;
    depth      bigint := 0;
    more       bigint;
BEGIN
    FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
        SELECT count(*) INTO more FROM (
            SELECT FROM queue.tasks AS t
            WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
              AND t.state = 'queued'
            LIMIT most - depth) AS u;
        depth := depth + more;
    END LOOP;
    SELECT count(*) INTO more FROM (
        SELECT FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key IS NOT NULL AND t.admission = is_blocked AND t.state = 'queued'
        LIMIT most - depth) AS u;
    RETURN depth + more;
END
$$;
COMMENT ON FUNCTION queue_internal.count_depth IS
    'Counts the queued tasks of a queue in its indexes, up to one more than max_queued.';
