-- queue.seal_batch
--
--   Waits:    for transactions that push into the batch
--   Touches:  queue_internal.batches (updates), queue_internal.events (inserts)

CREATE FUNCTION queue.seal_batch(batch bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source  text;
    at      timestamptz;
    total   bigint;
BEGIN
    IF batch IS NULL THEN
        PERFORM queue_internal.raise_null('batch');
    END IF;
    PERFORM queue_internal.check_batch(batch);
    -- The callback, too, as in a push: a call that cancels it comes before or after.
    SELECT t.queue INTO source FROM queue.tasks AS t
    WHERE t.id = batch AND t.state = 'waiting' AND queue_internal.has_right('producer', t.queue) FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_batch(batch);
    END IF;
    SELECT b.sealed_at INTO at FROM queue_internal.batches AS b WHERE b.task_id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_batch(batch);
    ELSIF at IS NOT NULL THEN
        RETURN;
    END IF;
    -- A new snapshot: the pushes that came first.
    SELECT count(*) INTO total FROM queue_internal.dependencies AS d
    WHERE d.task_id = batch AND d.on_failure = 'batch';
    UPDATE queue_internal.batches AS b SET sealed_at = clock_timestamp(), members = total
    WHERE b.task_id = batch;
    INSERT INTO queue_internal.events (queue, task_id) VALUES (source, batch);
END
$$;
COMMENT ON FUNCTION queue.seal_batch IS
'Seals a batch: no more tasks can be pushed into it, and its callback is queued once all of its tasks have ended. Waits
for transactions that are pushing into it. Does nothing if the batch is sealed already. Needs the producer''s right on
the queue of the batch.

- batch: the batch, as returned by queue.create_batch.

Errors: QX007: the batch does not exist, its callback has been queued or cancelled already, or the caller has no right on
its queue. 22004 or 22023: the argument is null or invalid.';
