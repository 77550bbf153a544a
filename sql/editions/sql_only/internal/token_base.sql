-- Without shared memory it is unknown whether the server has crashed since the mark was written. So a claim must be
-- durable in any case: a token that a session has seen is stored. As in claim_durably, which would cost a call for each claim.
CREATE FUNCTION queue_internal.token_base(durable boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN (SELECT m.reached + 1 FROM queue_internal.token_mark AS m);
END
$$;
COMMENT ON FUNCTION queue_internal.token_base IS
    'The smallest token that a claim may hand out. Makes the commit synchronous.';
