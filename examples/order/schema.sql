-- The queues, tables and functions of all three workers: psql shop -f schema.sql

SELECT queue.create('orders'), queue.create('mail');

CREATE TABLE stock (item text PRIMARY KEY, available integer NOT NULL CHECK (available >= 0));
CREATE TABLE reviews (order_number bigint PRIMARY KEY);

-- Stands for two external services, one that charges cards and one that ships parcels. If an idempotency key is repeated,
-- they do nothing and return the first receipt.
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
