CREATE EXTENSION queue_ext;
SELECT queue.create('bench');
