-- A worker's loop: the task of the time before is finished together with the next claim.
\if :token > 0
SELECT id, token FROM queue.complete_and_claim(:id, :token, NULL, '1 minute', 'bench') \gset
\else
SELECT id, token FROM queue.claim('1 minute', 'bench') \gset
\endif
