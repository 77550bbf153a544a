SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'bench', :batch) \gset
SELECT count(*) FROM queue.complete_many(:ids::bigint[], :tokens::bigint[]);
