SELECT count(*) FROM river_job WHERE finalized_at IS NULL
