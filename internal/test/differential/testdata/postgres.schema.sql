CREATE SCHEMA other
CREATE TYPE colour AS ENUM ('red', 'green', 'blau')
CREATE TABLE number (
  id SERIAL PRIMARY KEY, i2 SMALLINT, i4 INT NOT NULL DEFAULT 7, i8 BIGINT, d NUMERIC(20,6), any_d NUMERIC, f REAL, dbl DOUBLE PRECISION, flag BOOL,
  twice BIGINT GENERATED ALWAYS AS (i4 * 2) STORED, CONSTRAINT no_thirteen CHECK (i4 <> 13))
CREATE TABLE identified (id BIGINT GENERATED ALWAYS AS IDENTITY, small SMALLSERIAL, n INT UNIQUE, PRIMARY KEY (id))
CREATE TABLE string (
  id BIGSERIAL PRIMARY KEY, t TEXT UNIQUE, v VARCHAR(10), c CHAR(5), b BYTEA, e colour, j JSON, jb JSONB, u UUID, x INET, ts TSVECTOR GENERATED ALWAYS AS (to_tsvector('simple', coalesce(t, ''))) STORED)
CREATE TABLE list (id SERIAL PRIMARY KEY, i INT[], t TEXT[], d NUMERIC[], r INT4RANGE)
CREATE TABLE moment (
  id SERIAL PRIMARY KEY, d DATE, t TIME(3), ts TIMESTAMP, tz TIMESTAMPTZ, iv INTERVAL, shown TEXT, zone TEXT DEFAULT current_setting('TimeZone'))
CREATE TABLE keyed (a INT, b TEXT NOT NULL DEFAULT '', n INT NOT NULL DEFAULT 7, PRIMARY KEY (a, b), CONSTRAINT keyed_n UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)
CREATE TABLE other.keyed (a INT, b TEXT, n INT DEFAULT 8)
CREATE TABLE parent (id INT PRIMARY KEY, name TEXT NOT NULL DEFAULT 'none')
CREATE TABLE child (id SERIAL PRIMARY KEY, parent_id INT NOT NULL REFERENCES parent (id) ON UPDATE CASCADE, n INT)
CREATE TABLE late_child (id SERIAL PRIMARY KEY, parent_id INT NOT NULL REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)
CREATE TABLE audited (id SERIAL PRIMARY KEY, n INT UNIQUE)
CREATE TABLE audit (
  id SERIAL PRIMARY KEY, what TEXT, n INT, last_id BIGINT, zone TEXT, path TEXT, tenant TEXT, datestyle TEXT, escapes TEXT, isolation TEXT, depth INT, query TEXT)
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    INSERT INTO public.audit (what, n, last_id, zone, path, tenant, datestyle, escapes, isolation, depth, query) VALUES (TG_WHEN || TG_OP, NEW.n, lastval(),
      current_setting('TimeZone'), current_setting('search_path'), current_setting('app.tenant', true), current_setting('DateStyle'),
      current_setting('standard_conforming_strings'), current_setting('transaction_isolation'), pg_trigger_depth(), NULL);
    IF NEW.n = 42 THEN RAISE EXCEPTION 'not this one' USING DETAIL = 'n is 42', HINT = 'take another'; END IF;
    IF NEW.n = 5 THEN RETURN NULL; END IF;
    RETURN NEW;
  END $$
CREATE TRIGGER audited_before BEFORE INSERT OR UPDATE ON audited FOR EACH ROW EXECUTE FUNCTION keep()
CREATE TRIGGER audited_after AFTER INSERT ON audited FOR EACH ROW EXECUTE FUNCTION keep()
CREATE FUNCTION made(x INT) RETURNS BIGINT LANGUAGE sql AS $$ INSERT INTO public.audit (what, n) VALUES ('function', x); SELECT lastval() $$
CREATE PROCEDURE add_parent(x INT) LANGUAGE sql AS $$ INSERT INTO public.parent (id) VALUES (x) $$
CREATE VIEW small AS SELECT id, i4, flag FROM number WHERE i4 < 100 WITH CHECK OPTION
CREATE TABLE ruled (n INT)
CREATE RULE ruled_insert AS ON INSERT TO ruled WHERE NEW.n = 5 DO INSTEAD NOTHING
