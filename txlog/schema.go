package txlog

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/google/uuid"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

//go:embed schema
var schemas embed.FS

// Schema returns the statements that create the log's tables in a database: "mysql" (also
// for MariaDB), "postgres" or "sqlite". [Open] runs exactly these for an absent table.
func Schema(database string) (string, error) {
	f := sqltext.FlavorOf(database)
	if f == 0 {
		return "", fmt.Errorf("txlog: no schema for a database called %q: use mysql, postgres or sqlite", database)
	}
	text, err := schemas.ReadFile("schema/" + f.String() + ".sql")
	return string(text), err
}

// Migrations returns the steps that create and upgrade the log's tables in a database of [Schema], as
// files for goose, golang-migrate or atlas: 00001_bed_log.up.sql and so on. They only go up. A
// released file does not change, and a later version adds more. Tables that [Open] made are left as
// they are. golang-migrate needs multiStatements=true on MySQL.
func Migrations(database string) (fs.FS, error) {
	text, err := Schema(database)
	if err != nil {
		return nil, err
	}
	return tables.Migrations(sqltext.FlavorOf(database), text, "bed_log")
}

// logTables describes the log's tables in a database, the indispensable ones first.
func logTables(f sqltext.Flavor) []tables.Table {
	text, _ := Schema(f.String()) // every log's database has one
	return tables.Of(f, text)
}

// ensureTable finds the table complete, or creates it.
func (db *database) ensureTable(ctx context.Context, t *tables.Table, create bool) error {
	probeErr := db.probeTable(ctx, t)
	var dial *dialError
	if probeErr == nil || errors.Is(probeErr, ErrUnusable) || !db.backend.definite(probeErr) || errors.As(probeErr, &dial) {
		return probeErr
	}
	advice := fmt.Sprintf("run the %s section of schema.sql there", db.backend.Flavor)
	if !create {
		return fmt.Errorf("the table %s cannot be read: %w; %s", t.Name, probeErr, advice)
	}
	// Other processes may be creating it at this moment. PostgreSQL then reports a duplicate in
	// its catalogue, SQLite a locked file; soon the table is there.
	var err error
	for try := range 5 {
		if err = db.createTable(ctx, t); err == nil {
			return db.probeTable(ctx, t)
		}
		if probeErr = db.probeTable(ctx, t); probeErr == nil || errors.Is(probeErr, ErrUnusable) {
			return probeErr
		}
		if dberr.Of(err).Denied() || !groupcommit.Pause(ctx, try) {
			break
		}
	}
	return fmt.Errorf("the table %s is not there and cannot be created: %w; %s", t.Name, err, advice)
}

// createTable runs the schema's statements for one table. It runs no statement for an
// existing table: PostgreSQL requires its owner even for an index that is already there.
func (db *database) createTable(ctx context.Context, t *tables.Table) error {
	return db.inTx(ctx, func(ctx context.Context, q runner) error {
		for _, statement := range t.Statements() {
			if _, err := q.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// lacking is the error of an unusable existing table.
func lacking(t *tables.Table, what, remedy string) error {
	return fmt.Errorf("%w: the table %s is there but lacks %s: %s", ErrUnusable, t.Name, what, remedy)
}

// probeTable looks for the columns and the key. Without the key, duplicates are not
// prevented.
func (db *database) probeTable(ctx context.Context, t *tables.Table) error {
	there, err := tables.Columns(ctx, db, t.Name)
	if err != nil {
		return err
	}
	if missing := t.Lacks(there); missing != nil {
		return lacking(t, strings.Join(missing, ", "), "add what schema.sql says of them, or move the old table away so that a new one can be created")
	}
	switch indexes, err := (tables.Place{Flavor: db.backend.Flavor}).ReadIndexes(ctx, db, t.Name); {
	case err != nil:
		return err
	case !t.HasKey(indexes):
		return lacking(t, "its primary key", "run "+t.AddKey(t.Name)+", once no row stands there twice")
	}
	return nil
}

// readIdentity reads the log's identity, and sets it if it is still missing.
func (db *database) readIdentity(ctx context.Context) (string, error) {
	identity, err := db.fact(ctx, tables.Identity)
	if errors.Is(err, sql.ErrNoRows) {
		if err = db.addFact(ctx, tables.Identity, uuid.NewString()); err == nil {
			// Another process may have been first.
			identity, err = db.fact(ctx, tables.Identity)
		}
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("the log's identity cannot be read from the table bed_log, or not be put there: %w", err)
	case !entry.StorableToken(identity, entry.MaxToken):
		return "", fmt.Errorf("%w: its identity in the table bed_log is %.100q: it must have 1 to %d printable ASCII characters; "+
			"give it back the one it had, or delete the row for a new one", ErrUnusable, identity, entry.MaxToken)
	}
	return identity, nil
}

// fact reads a row of bed_log; sql.ErrNoRows if it is missing.
func (db *database) fact(ctx context.Context, name string) (value string, err error) {
	err = db.QueryRowContext(ctx, shape{kind: selectFact}.text(db.backend.Flavor), name).Scan(&value)
	return value, err
}

// addFact adds a row to bed_log, unless one with that name exists.
func (db *database) addFact(ctx context.Context, name, value string) error {
	_, err := db.ExecContext(ctx, shape{kind: insertFact}.text(db.backend.Flavor), name, value)
	return err
}

// maxReceiptSchema is the longest schema name that every database accepts.
const maxReceiptSchema = 63

func validateReceiptSchema(dataSource, schema string) error {
	if schema != "" && !entry.StorableToken(schema, maxReceiptSchema) {
		return fmt.Errorf("txlog: the schema of the receipts of %s must have at most %d printable ASCII characters", dataSource, maxReceiptSchema)
	}
	return nil
}
