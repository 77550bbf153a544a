SELECT count(*) FROM queue.tasks
