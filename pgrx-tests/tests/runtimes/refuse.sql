-- A trigger of a user's that refuses what `at` in the payload names, with the SQLSTATE `code` and the payload in the message. It has
-- neither a condition nor arguments, and so it runs with the owner's rights.
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE event text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state = 'completed' THEN
            event := 'complete';
        END IF;
    ELSIF OLD.state = 'queued' AND NEW.state = 'running' THEN
        event := 'claim';
    ELSIF NEW.state = 'running' AND OLD.token = NEW.token AND NEW.lease_until > OLD.lease_until THEN
        event := 'extend';
    END IF;
    IF NEW.payload ->> 'at' = event THEN
        RAISE 'refused: %', NEW.payload USING ERRCODE = NEW.payload ->> 'code';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER refuse BEFORE UPDATE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON queue.history FOR EACH ROW EXECUTE FUNCTION refuse();
