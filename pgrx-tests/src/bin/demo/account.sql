SELECT
    (SELECT count(*) FROM queue.all_tasks WHERE queue = 'orders') AS all_tasks,
    (SELECT count(*) FROM queue.tasks WHERE queue = 'orders') AS live,
    (SELECT count(*) FROM queue.history WHERE queue = 'orders' AND state = 'completed') AS completed,
    (SELECT count(*) FROM queue.dead_letters WHERE queue = 'orders') AS dead,
    (SELECT count(*) FROM queue.dead_letters JOIN queue.history USING (id)) AS both,
    (SELECT count(*) FROM shop.shipped) AS shipped,
    (SELECT count(*) - count(DISTINCT order_id) FROM shop.shipped) AS shipped_twice,
    (SELECT count(*) FROM queue.history AS h
     WHERE NOT EXISTS (SELECT FROM shop.shipped AS s WHERE s.order_id = (h.payload->>'order')::bigint)) AS unshipped,
    (SELECT count(*) FROM queue.all_tasks AS t, jsonb_array_elements(t.errors) AS e
     WHERE e->>'error' = 'lease expired') AS expired
