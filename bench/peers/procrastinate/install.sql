-- A job's worker_id is a reference, so that the claims need one worker that is registered.
SELECT procrastinate_register_worker_v1();
