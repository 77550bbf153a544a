-- A worker's loop: each claim also completes the previous task.
\if :token > 0
SELECT id, token FROM queue.complete_and_claim(:id, :token, NULL, '1 minute', 'bench') \gset
\else
SELECT id, token FROM queue.claim('1 minute', 'bench') \gset
\endif
