INSERT INTO bare (queue, payload) VALUES ('bench', :payload) RETURNING id;
