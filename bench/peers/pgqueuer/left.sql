SELECT count(*) FROM pgqueuer
