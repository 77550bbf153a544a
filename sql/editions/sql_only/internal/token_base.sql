-- Without shared memory it is unknown whether the server has crashed since the mark was written. So a claim must be
-- durable: a token that a session has seen is stored.
CREATE FUNCTION queue_internal.token_base() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.claim_durably();
    RETURN (SELECT m.reached + 1 FROM queue_internal.token_mark AS m);
END
$$;
COMMENT ON FUNCTION queue_internal.token_base IS
    'The smallest token that a claim may hand out. Makes the commit synchronous.';
