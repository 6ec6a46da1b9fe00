
-- `order: strict`: the second of two writers of one key waits here for the first, and takes its number
-- afterwards. So numbers are in the order of commits within a key. Transactions that write several keys
-- should write them in one order, or the server ends one of two that wait for each other.
CREATE FUNCTION {table}_strict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('{table}'), hashtext(NEW.aggregate_id));
    NEW.id := nextval(pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), 'id'));
    RETURN NEW;
END $$;
CREATE TRIGGER {table}_b_strict BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_strict();
