-- The ticker ends a batch after a number of events or some time. Here a tick is requested after every hundred events, so
-- that batches are as large as those of the other systems.
SELECT pgq.unregister_consumer('bench', 'worker'), pgq.drop_queue('bench');
SELECT pgq.create_queue('bench'), pgq.register_consumer('bench', 'worker');
SELECT pgq.set_queue_config('bench', 'ticker_max_count', '100');
SELECT set_config('bench.tasks', :'tasks', false), set_config('bench.payload', :'payload', false);
-- Loading is not measured, and a commit for each batch would take long.
SET synchronous_commit = off;
DO $$
BEGIN
    FOR batch IN 1 .. current_setting('bench.tasks')::integer / 100 LOOP
        PERFORM pgq.insert_event('bench', 'work', current_setting('bench.payload')) FROM generate_series(1, 100);
        COMMIT;
        PERFORM pgq.ticker('bench');
        COMMIT;
    END LOOP;
END
$$;
