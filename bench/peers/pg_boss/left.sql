SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state < 'completed'
