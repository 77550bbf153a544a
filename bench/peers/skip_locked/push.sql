INSERT INTO jobs (payload) VALUES (:payload) RETURNING id;
