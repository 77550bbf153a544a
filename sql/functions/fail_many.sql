-- queue.fail_many
--
--   Waits:    as queue.fail
--   Touches:  as queue.fail. Locks the tasks that run with the token given, in the order of ids, before it ends the first
--             one, so that two batches cannot deadlock

CREATE FUNCTION queue.fail_many(
    ids       bigint[],
    tokens    bigint[],
    errors    text[],
    retry_in  interval DEFAULT NULL,
    permanent boolean  DEFAULT false,
    details   jsonb[]  DEFAULT NULL)
RETURNS TABLE (id bigint, state text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed    bigint[];
    states    text[];
    positions bigint[];
    one       record;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_array('errors', errors);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('errors', errors, cardinality(ids));
    PERFORM queue_internal.check_same_length('details', details, cardinality(ids));
    PERFORM queue_internal.check_error('errors', g.error, g.details)
    FROM ROWS FROM (unnest(errors), unnest(details)) AS g (error, details);
    PERFORM queue_internal.check_retry(retry_in, permanent);
    FOR one IN
        SELECT l.id, l.token, l.nth, g.error, g.details
        FROM queue_internal.lock_leases(ids, tokens, permanent) AS l
        JOIN ROWS FROM (unnest(errors), unnest(details)) WITH ORDINALITY AS g (error, details, nth) ON g.nth = l.nth
        ORDER BY l.id
    LOOP
        failed := failed || one.id;
        states := states || queue.fail(one.id, one.token, one.error, retry_in, permanent, one.details);
        positions := positions || one.nth;
    END LOOP;
    RETURN QUERY SELECT d.id, d.state FROM unnest(failed, states, positions) AS d (id, state, nth) ORDER BY d.nth;
END
$$;
COMMENT ON FUNCTION queue.fail_many IS
'Reports that the attempts of many tasks failed, as queue.fail. Returns the id and the new state of each task that was
accepted, in the order given. A task whose token is stale, or on whose queue the caller has no worker''s right, is left
out and does not affect the others. Empty arrays return no rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- errors: what went wrong with each task, 1 byte to 1 MB.
- retry_in: the delay before the next attempt, the same for all, at most 100 years. Null (default) means the backoff.
- permanent: true moves the tasks to the dead letters at once. Cannot be combined with retry_in. Default false.
- details: one JSON value for each task, stored with its error; an element may be null. At most 64 kB each. Null
  (default) means none.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
