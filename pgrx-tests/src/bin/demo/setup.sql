CREATE EXTENSION queue_ext;
SELECT queue.create('orders', '{"lease": "2 seconds", "max_attempts": 20,
                                "backoff": {"base": "300 ms", "max": "2 s"}}');
CREATE SCHEMA shop;

-- The effects of the workers. No constraint prevents duplicates, so the queue has to.
CREATE TABLE shop.shipped (order_id bigint NOT NULL, worker text NOT NULL);

CREATE FUNCTION shop.order(first bigint, number bigint) RETURNS void LANGUAGE sql AS $$
    SELECT count(queue.push(
        'orders',
        jsonb_build_object('order', n, 'kind', CASE WHEN n % 100 = 0 THEN 'broken'
                                                    WHEN n % 30 = 1 THEN 'flaky' ELSE 'fine' END),
        priority => CASE WHEN n % 10 = 0 THEN -1 ELSE 0 END,
        -- The others have enough attempts for a slow machine, on which a worker may be killed several times at one order.
        max_attempts => CASE WHEN n % 100 = 0 THEN 3 END,
        delay => CASE WHEN n % 50 = 3 THEN make_interval(secs => 2 + n % 8) ELSE '0' END,
        headers => jsonb_build_object('request_id', 'r-' || n)))
    FROM generate_series(first, first + number - 1) AS n;
$$;
