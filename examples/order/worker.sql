-- Handles one order. To handle one after another: yes '\i worker.sql' | psql shop

\set payment_timeout '3 days'
\getenv payment_timeout PAYMENT_TIMEOUT
\set remind_after '7 days'
\getenv remind_after REMIND_AFTER

CALL queue.take('orders') \gset
\if :{?id}
    CALL fulfil(:id, :token, :'payload', :'payment_timeout', :'remind_after');
    \if :ERROR
        SELECT queue.fail(:id, :token, :'LAST_ERROR_MESSAGE');
    \endif
\endif
