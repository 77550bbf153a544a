-- PgQ: a queue with one consumer. A batch consists of the events between two ticks.
CREATE EXTENSION pgq;
SELECT pgq.create_queue('bench'), pgq.register_consumer('bench', 'worker');
