-- The history keeps no payloads, like queues that delete finished jobs.
CREATE EXTENSION queue_ext;
SELECT queue.create('bench', '{"keep_payloads": false}');
