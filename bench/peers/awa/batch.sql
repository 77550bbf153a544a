-- awa 0.6.9: the statements of its worker for a batch, as the server logged them: the claim, the
-- advance of the lane's cursor, and the completion by receipt. A claim that finds the lane's head locked
-- returns nothing, and is tried again. The rings do not turn here, which is the maintenance's work.
SELECT count(*) AS n, array_agg(claim_slot) AS claim_slots, array_agg(ready_slot) AS ready_slots,
       array_agg(ready_generation) AS generations, array_agg(job_id) AS ids, array_agg(queue) AS queues,
       array_agg(priority) AS priorities, array_agg(attempt) AS attempts, array_agg(run_lease) AS leases,
       array_agg(receipt_id) AS receipts, array_agg(claim_batch_id) AS batch_ids,
       array_agg(claim_batch_index) AS batch_indexes, array_agg(lane_seq) AS lane_seqs,
       array_agg(enqueue_shard) AS shards, array_agg(attempted_at) AS times,
       max(lane_seq) + 1 AS next_seq, max(lane_priority) AS priority, max(enqueue_shard) AS shard,
       count(args) AS args
FROM awa.claim_ready_runtime('bench', :batch, 300, 60) \gset
\if :n > 0
WITH head AS MATERIALIZED (
    SELECT seq_name FROM awa.queue_claim_heads
    WHERE queue = 'bench' AND priority = :priority AND enqueue_shard = :shard FOR UPDATE
)
SELECT awa.set_sequence_next(seq_name, :next_seq) FROM head;
BEGIN;
WITH locks AS MATERIALIZED (
    SELECT DISTINCT hashtextextended(format('awa.receipt.complete%s%s', job_id, run_lease), 0) AS lock_key
    FROM unnest(:ids::bigint[], :leases::bigint[]) AS input (job_id, run_lease)
    ORDER BY lock_key
)
SELECT pg_advisory_xact_lock(lock_key) FROM locks;
WITH completed (claim_slot, ready_slot, ready_generation, job_id, queue, priority, attempt, run_lease, receipt_id,
                claim_batch_id, claim_batch_index, lane_seq, enqueue_shard, attempted_at, finalized_at) AS (
    SELECT *, now() FROM unnest(
        :claim_slots::int[], :ready_slots::int[], :generations::bigint[], :ids::bigint[], :queues::text[],
        :priorities::smallint[], :attempts::smallint[], :leases::bigint[], :receipts::bigint[],
        :batch_ids::bigint[], :batch_indexes::int[], :lane_seqs::bigint[], :shards::smallint[],
        :times::timestamptz[])
), row_claim_refs AS (
    SELECT claims.claim_slot, claims.job_id, claims.run_lease, claims.receipt_id
    FROM awa.lease_claims_0 AS claims
    JOIN completed
      ON completed.claim_slot = claims.claim_slot AND completed.job_id = claims.job_id
     AND completed.run_lease = claims.run_lease AND completed.receipt_id = claims.receipt_id
     AND completed.claim_batch_id IS NULL
    WHERE NOT (
        claims.closed_at IS NOT NULL
        OR EXISTS (SELECT 1 FROM awa.lease_claim_closures_0 AS closures
                   WHERE closures.claim_slot = claims.claim_slot AND closures.job_id = claims.job_id
                     AND closures.run_lease = claims.run_lease)
        OR EXISTS (SELECT 1 FROM awa.lease_claim_closure_batches_0 AS closure_batches
                   WHERE closure_batches.receipt_ranges @> claims.receipt_id)
        OR EXISTS (SELECT 1 FROM awa.done_entries AS done
                   WHERE done.job_id = claims.job_id AND done.run_lease = claims.run_lease)
        OR EXISTS (SELECT 1 FROM awa.deferred_jobs AS deferred
                   WHERE deferred.job_id = claims.job_id AND deferred.run_lease = claims.run_lease)
        OR EXISTS (SELECT 1 FROM awa.dlq_entries AS dlq
                   WHERE dlq.job_id = claims.job_id AND dlq.run_lease = claims.run_lease))
      AND NOT EXISTS (SELECT 1 FROM awa.leases AS lease
                      WHERE lease.job_id = claims.job_id AND lease.run_lease = claims.run_lease)
), batch_claim_refs AS (
    SELECT claim_batches.claim_slot, items.job_id, items.run_lease, items.receipt_id
    FROM completed
    JOIN awa.lease_claim_batches_0 AS claim_batches
      ON claim_batches.claim_slot = completed.claim_slot AND claim_batches.batch_id = completed.claim_batch_id
    CROSS JOIN LATERAL (
        SELECT claim_batches.job_ids[completed.claim_batch_index] AS job_id,
               claim_batches.run_leases[completed.claim_batch_index] AS run_lease,
               claim_batches.receipt_ids[completed.claim_batch_index] AS receipt_id
    ) AS items
    WHERE completed.claim_batch_id IS NOT NULL AND completed.claim_batch_index IS NOT NULL
      AND completed.claim_batch_index BETWEEN 1 AND claim_batches.claimed_count
      AND completed.job_id = items.job_id AND completed.run_lease = items.run_lease
      AND completed.receipt_id = items.receipt_id
      AND NOT EXISTS (SELECT 1 FROM awa.lease_claim_closures_0 AS closures
                      WHERE closures.claim_slot = claim_batches.claim_slot AND closures.job_id = items.job_id
                        AND closures.run_lease = items.run_lease)
      AND NOT EXISTS (SELECT 1 FROM awa.lease_claim_closure_batches_0 AS closure_batches
                      WHERE closure_batches.receipt_ranges @> items.receipt_id)
      AND NOT EXISTS (SELECT 1 FROM awa.leases AS lease
                      WHERE lease.job_id = items.job_id AND lease.run_lease = items.run_lease)
), claim_refs AS (
    SELECT claim_slot, job_id, run_lease, receipt_id FROM row_claim_refs
    UNION ALL
    SELECT claim_slot, job_id, run_lease, receipt_id FROM batch_claim_refs
), deleted_attempts AS (
    DELETE FROM awa.attempt_state AS attempt
    USING claim_refs
    WHERE attempt.job_id = claim_refs.job_id AND attempt.run_lease = claim_refs.run_lease
    RETURNING attempt.job_id
), completed_rows AS (
    SELECT completed.*
    FROM completed
    JOIN claim_refs
      ON claim_refs.claim_slot = completed.claim_slot AND claim_refs.job_id = completed.job_id
     AND claim_refs.run_lease = completed.run_lease AND claim_refs.receipt_id = completed.receipt_id
), claim_closure_batches AS (
    INSERT INTO awa.lease_claim_closure_batches_0 (
        claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges, closed_at)
    SELECT c.claim_slot, c.ready_slot, c.ready_generation, 'completed', count(*)::int,
           array_agg(c.receipt_id ORDER BY c.lane_seq, c.job_id),
           range_agg(int8range(c.receipt_id, c.receipt_id + 1, '[)') ORDER BY c.receipt_id), max(c.finalized_at)
    FROM completed_rows AS c
    GROUP BY c.claim_slot, c.ready_slot, c.ready_generation
    RETURNING claim_slot
), terminal AS (
    INSERT INTO awa.receipt_completion_batches (
        ready_slot, ready_generation, claim_slot, queue, priority, enqueue_shard, completed_count, job_ids,
        run_leases, lane_seqs, attempts, attempted_ats, finalized_at)
    SELECT c.ready_slot, c.ready_generation, c.claim_slot, c.queue, c.priority, c.enqueue_shard, count(*)::int,
           array_agg(c.job_id ORDER BY c.lane_seq, c.job_id), array_agg(c.run_lease ORDER BY c.lane_seq, c.job_id),
           array_agg(c.lane_seq ORDER BY c.lane_seq, c.job_id), array_agg(c.attempt ORDER BY c.lane_seq, c.job_id),
           array_agg(c.attempted_at ORDER BY c.lane_seq, c.job_id), max(c.finalized_at)
    FROM completed_rows AS c
    GROUP BY c.ready_slot, c.ready_generation, c.claim_slot, c.queue, c.priority, c.enqueue_shard
    RETURNING ready_slot
)
SELECT completed_rows.job_id, completed_rows.run_lease
FROM completed_rows
CROSS JOIN (SELECT count(*) FROM claim_closure_batches) AS closure_batch_write
CROSS JOIN (SELECT count(*) FROM terminal) AS terminal_write;
COMMIT;
\endif
