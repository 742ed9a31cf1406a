CREATE TABLE number (
  id INTEGER PRIMARY KEY, i INTEGER, u UNSIGNED BIG INT, d DECIMAL(20,6), f REAL, flag BOOLEAN, any_value, twice AS (i * 2),
  stored TEXT AS (typeof(any_value)) STORED, n INT NOT NULL DEFAULT 7, CONSTRAINT no_thirteen CHECK (n <> 13))
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, n INT UNIQUE, t TEXT DEFAULT 'none')
CREATE TABLE string (id INTEGER PRIMARY KEY, t TEXT UNIQUE, nc TEXT COLLATE NOCASE, v VARCHAR(10), b BLOB, j JSON)
CREATE TABLE moment (id INTEGER PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP, t TEXT, i INTEGER)
CREATE TABLE keyed (a INT, b TEXT NOT NULL DEFAULT '', n INT NOT NULL DEFAULT 7, PRIMARY KEY (a, b), UNIQUE (n)) WITHOUT ROWID
CREATE TABLE strict_one (id INTEGER PRIMARY KEY, i INTEGER, t TEXT, b BLOB, r REAL) STRICT
CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT NOT NULL DEFAULT 'none')
CREATE TABLE child (id INTEGER PRIMARY KEY, parent_id INT NOT NULL REFERENCES parent (id) ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED, n INT)
CREATE TABLE audited (id INTEGER PRIMARY KEY, n INT UNIQUE)
CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT, n INT, last_id INT)
CREATE TABLE counting (n INT UNIQUE)
CREATE TABLE counted_changes (n INT, changed INT)
CREATE TRIGGER audited_before BEFORE INSERT ON audited
  BEGIN
    INSERT INTO audit (what, n, last_id) VALUES ('before', NEW.n, last_insert_rowid());
    SELECT RAISE(ABORT, 'not this one') WHERE NEW.n = 42;
    SELECT RAISE(IGNORE) WHERE NEW.n = 5;
  END
CREATE TRIGGER audited_after AFTER INSERT ON audited
  BEGIN
    INSERT INTO audit (what, n, last_id) VALUES ('after', NEW.n, last_insert_rowid());
  END
CREATE TRIGGER audited_changed AFTER UPDATE ON audited
  BEGIN
    INSERT INTO audit (what, n, last_id) VALUES ('update', NEW.n, last_insert_rowid());
    UPDATE audited SET n = n - 1 WHERE id = NEW.id AND n > 100000;
  END
CREATE TRIGGER audited_deleted BEFORE DELETE ON audited
  BEGIN
    INSERT INTO audit (what, n, last_id) VALUES ('delete', OLD.n, last_insert_rowid());
  END
CREATE TRIGGER counting_after AFTER INSERT ON counting BEGIN INSERT INTO counted_changes VALUES (NEW.n, changes()); END
CREATE VIEW small AS SELECT id, n FROM number WHERE n < 100
CREATE TRIGGER small_insert INSTEAD OF INSERT ON small BEGIN INSERT INTO number (n) VALUES (NEW.n); END
