SELECT (SELECT count(*) FROM awa.ready_entries)
     - (SELECT coalesce(sum(completed_count), 0)::bigint FROM awa.receipt_completion_batches)
