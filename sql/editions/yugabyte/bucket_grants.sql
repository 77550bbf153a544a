-- Called in the default of queue.tasks.bucket, with the privileges of the role that inserts.
GRANT EXECUTE ON FUNCTION queue_internal.buckets() TO PUBLIC;
