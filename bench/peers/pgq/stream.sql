-- The one consumer is also one of the producers. It ends a batch itself, so that it takes all events that are there.
\if :client_id = 0
SELECT pgq.ticker('bench');
SELECT coalesce(pgq.next_batch('bench', 'worker'), 0) AS batch_id \gset
SELECT count(ev_data) FROM pgq.get_batch_events(nullif(:batch_id, 0)) WHERE :batch_id > 0;
SELECT pgq.finish_batch(:batch_id) WHERE :batch_id > 0;
\endif
SELECT count(pgq.insert_event('bench', 'work', :payload)) FROM generate_series(1, :batch);
