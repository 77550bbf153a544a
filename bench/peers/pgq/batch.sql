-- PgQ 3.5: a consumer's loop.
SELECT pgq.next_batch('bench', 'worker') AS batch_id \gset
SELECT count(ev_data) FROM pgq.get_batch_events(:batch_id);
SELECT pgq.finish_batch(:batch_id);
