-- What the three workers share: psql shop -f schema.sql

SELECT queue.create('orders'), queue.create('mail');

CREATE TABLE stock (item text PRIMARY KEY, available integer NOT NULL CHECK (available >= 0));
CREATE TABLE reviews (order_number bigint PRIMARY KEY);

-- Stands for two services on the internet, one that charges cards and one that ships parcels. They do nothing twice for the
-- same idempotency key, and return the same receipt again.
CREATE TABLE service_requests (
    key          text    PRIMARY KEY,
    service      text    NOT NULL,
    order_number bigint  NOT NULL,
    times        integer NOT NULL DEFAULT 1,
    receipt      bigint  GENERATED ALWAYS AS IDENTITY);

CREATE FUNCTION request(service text, key text, order_number bigint) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO service_requests AS r (key, service, order_number) VALUES (key, service, order_number)
    ON CONFLICT ON CONSTRAINT service_requests_pkey DO UPDATE SET times = r.times + 1
    RETURNING jsonb_build_object('receipt', r.receipt)
$$;
