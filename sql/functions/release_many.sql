-- queue.release_many
--
--   Waits:    as queue.release
--   Touches:  as queue.release. Locks the tasks that run with the token given, in the order of ids, before it gives back
--             the first one, so that two batches cannot deadlock

CREATE FUNCTION queue.release_many(ids bigint[], tokens bigint[], delay interval DEFAULT '0') RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    released  bigint[];
    positions bigint[];
    one       record;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    IF delay IS NULL THEN
        PERFORM queue_internal.raise_null('delay');
    END IF;
    PERFORM queue_internal.check_delay('delay', delay);
    FOR one IN SELECT l.* FROM queue_internal.lock_leases(ids, tokens, NULL) AS l ORDER BY l.id LOOP
        PERFORM queue.release(one.id, one.token, delay);
        released := released || one.id;
        positions := positions || one.nth;
    END LOOP;
    RETURN QUERY SELECT d.id FROM unnest(released, positions) AS d (id, nth) ORDER BY d.nth;
END
$$;
COMMENT ON FUNCTION queue.release_many IS
'Gives many tasks back without counting their attempts, as queue.release, and returns the ids of those that were
accepted, in the order given. A task whose token is stale, or on whose queue the caller has no worker''s right, is left
out and does not affect the others. Empty arrays return no rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- delay: how long until the tasks can be claimed again, at most 100 years. With 0 (default) they keep their places in the
  queue.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
