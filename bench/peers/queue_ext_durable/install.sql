-- Claims that wait for the disk, as in other queues.
CREATE EXTENSION queue_ext;
SELECT queue.create('bench', '{"durable_leases": "on"}');
