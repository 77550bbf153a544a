-- Orders: reserve, charge, wait for the payment, ship, and remind after a week. psql shop -f order.sql creates the
-- procedure, and worker.sql calls it.

CREATE PROCEDURE fulfil(id bigint, token bigint, payload jsonb, payment_timeout interval, remind_after interval)
LANGUAGE plpgsql AS $$
DECLARE
    number  bigint := payload -> 'order';
    ordered text := payload ->> 'item';
    receipt jsonb;
    paid    boolean;
BEGIN
    -- A step that changes this database: the change and the step commit together.
    IF NOT is_done(id, 'reserve') THEN
        PERFORM queue.assert_lease(id, token);
        UPDATE stock SET available = available - 1 WHERE item = ordered;
        PERFORM queue.step(id, token, 'reserve', 'null');
        COMMIT;
    END IF;

    -- A call to another service: if the worker dies before the step is stored, the next worker repeats it with the same key.
    IF NOT is_done(id, 'charge') THEN
        receipt := request('charge', id || '/charge', number);
        COMMIT; -- Nothing can undo the call.
        PERFORM queue.step(id, token, 'charge', receipt);
        COMMIT;
    END IF;

    SELECT arrived INTO paid FROM queue.await_event(id, token, 'payment:' || number, payment_timeout);
    COMMIT;
    IF paid IS NULL THEN
        RETURN; -- Suspended: the task is claimed again when the event is emitted or the timeout has passed.
    ELSIF NOT paid THEN
        IF NOT is_done(id, 'cancel') THEN
            PERFORM queue.assert_lease(id, token);
            UPDATE stock SET available = available + 1 WHERE item = ordered;
            PERFORM queue.step(id, token, 'cancel', 'null');
            COMMIT;
        END IF;
        PERFORM queue.complete(id, token, '"cancelled"');
        RETURN;
    END IF;

    IF NOT is_done(id, 'ship') THEN
        receipt := request('ship', id || '/ship', number);
        COMMIT;
        PERFORM queue.step(id, token, 'ship', receipt);
        COMMIT;
    END IF;

    IF NOT queue.sleep(id, token, 'before the reminder', remind_after) THEN
        RETURN; -- Suspended for a week.
    END IF;
    COMMIT;

    IF NOT is_done(id, 'remind') THEN
        PERFORM queue.assert_lease(id, token);
        PERFORM queue.push('mail', jsonb_build_object('review_order', number))
        WHERE NOT EXISTS (SELECT FROM reviews WHERE order_number = number);
        PERFORM queue.step(id, token, 'remind', to_jsonb(FOUND));
        COMMIT;
    END IF;
    PERFORM queue.complete(id, token, '"shipped"');
END
$$;

CREATE FUNCTION is_done(id bigint, step text) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM queue.steps(id) WHERE kind = 'step' AND name = step)
$$;
