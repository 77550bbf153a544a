SELECT queue.push('bench');
SELECT id, token FROM queue.claim('1 minute', 'bench') \gset
SELECT queue.complete(:id, :token);
