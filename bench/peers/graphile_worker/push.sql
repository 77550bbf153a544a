-- graphile-worker 0.18.0: the function that it gives to producers.
SELECT graphile_worker.add_job('bench', :payload::json);
