-- Made by "make portable".
\set script `ls -t target/queue_ext-portable--*.sql | head -1`
\i :script
SELECT queue.create('bench');
