-- PgQ 3.5: a producer.
SELECT pgq.insert_event('bench', 'work', :payload);
