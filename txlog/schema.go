package txlog

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/logrow"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

//go:embed schema
var schemas embed.FS

// Schema gives the statements that create the log's tables in a database:
// "mysql" (also for MariaDB), "postgres" or "sqlite". [Open] runs exactly
// these when a table is absent.
func Schema(database string) (string, error) {
	f := flavorOf(database)
	if f == 0 {
		return "", fmt.Errorf("txlog: no schema for a database called %q: use mysql, postgres or sqlite", database)
	}
	text, err := schemas.ReadFile("schema/" + f.String() + ".sql")
	if err != nil {
		return "", fmt.Errorf("txlog: the schema for %s: %w", f, err)
	}
	return string(text), nil
}

// table is one of the log's tables with all its columns.
type table struct {
	name    string
	columns []string
}

var tables = []table{{"transaction_log", []string{
	"id", "transaction_type", "data_source", "sql", "parameters", "creation_time", "async_delivery_try_times",
	"transaction_id", "statement_no", "statement_count", "settings", "not_replayable", "receipt", "fingerprint", "in_doubt",
	"next_try_time", "last_error", "parked", "lease_token", "lease_until",
}}, {"bed_log", []string{"name", "value"}}}

// ensureTable finds the table whole, or creates it.
func (db *database) ensureTable(ctx context.Context, t table, create bool) error {
	probeErr := db.probeTable(ctx, t)
	var missing *missingError
	if probeErr == nil || errors.As(probeErr, &missing) || !db.backend.definite(probeErr) || isDial(probeErr) {
		return probeErr
	}
	advice := fmt.Sprintf("run the %s section of schema.sql there", db.backend.Flavor)
	if !create {
		return fmt.Errorf("the table %s cannot be read: %w; %s", t.name, probeErr, advice)
	}
	// Others may be creating it at this moment. PostgreSQL then answers with a
	// duplicate in its catalogue, SQLite that the file is locked; once they
	// are done the table is there.
	var err error
	for try := range 5 {
		if err = db.createTable(ctx, t); err == nil {
			return db.probeTable(ctx, t)
		}
		if probeErr = db.probeTable(ctx, t); probeErr == nil || errors.As(probeErr, &missing) {
			return probeErr
		}
		if dberr.Of(err).Denied() || !groupcommit.Pause(ctx, try) {
			break
		}
	}
	return fmt.Errorf("the table %s is not there and cannot be created: %w; %s", t.name, err, advice)
}

func isDial(err error) bool {
	var dial *dialError
	return errors.As(err, &dial)
}

// createTable runs the schema's statements for one table, and nothing for a table
// that exists: PostgreSQL requires its owner even for an index that is there.
func (db *database) createTable(ctx context.Context, t table) error {
	text, err := Schema(db.backend.Flavor.String())
	if err != nil {
		return err
	}
	return db.inTx(ctx, func(ctx context.Context, q runner) error {
		for _, statement := range splitStatements(text) {
			if !strings.Contains(statement, " "+t.name+" (") {
				continue
			}
			if _, err := q.exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// splitStatements cuts a schema at the semicolons that end a line; there are
// no others in it.
func splitStatements(text string) []string {
	var all []string
	for statement := range strings.SplitSeq(text, ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}

// missingError names the columns that an existing table lacks.
type missingError struct{ table }

func (e *missingError) Error() string {
	return "the table " + e.name + " is there but lacks " + strings.Join(e.columns, ", ") +
		": add what schema.sql says of them, or move the old table away so that a new one can be created"
}

// Is makes errors.Is(err, ErrUnusable) true.
func (e *missingError) Is(target error) bool { return target == ErrUnusable }

func (db *database) probeTable(ctx context.Context, t table) error {
	there, err := dbserver.Columns(ctx, db, t.name)
	if err != nil {
		return err
	}
	var missing []string
	for _, name := range t.columns {
		if !slices.Contains(there, name) {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return &missingError{table{t.name, missing}}
	}
	return nil
}

// readIdentity reads the log's identity, and gives it one if nobody has done so
// yet.
func (db *database) readIdentity(ctx context.Context) (string, error) {
	identity, err := db.fact(ctx, logrow.Identity)
	if errors.Is(err, sql.ErrNoRows) {
		if err = db.addFact(ctx, logrow.Identity, uuid.NewString()); err == nil {
			// Somebody else's may have come first.
			identity, err = db.fact(ctx, logrow.Identity)
		}
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("the log's identity cannot be read from the table bed_log, or not be put there: %w", err)
	case !storableToken(identity, maxToken):
		return "", &identityError{identity}
	}
	return identity, nil
}

// identityError is an identity that cannot be one.
type identityError struct{ identity string }

func (e *identityError) Error() string {
	return fmt.Sprintf("the log's identity in the table bed_log is %.100q: it must have 1 to %d printable ASCII characters; "+
		"give it back the one it had, or delete the row for a new one", e.identity, maxToken)
}

// Is makes errors.Is(err, ErrUnusable) true.
func (e *identityError) Is(target error) bool { return target == ErrUnusable }

// fact reads a row of bed_log; sql.ErrNoRows if there is none.
func (db *database) fact(ctx context.Context, name string) (value string, err error) {
	err = db.QueryRowContext(ctx, db.backend.Flavor.text(shape{kind: selectFact}), name).Scan(&value)
	return value, err
}

// addFact adds a row to bed_log, unless there is one of that name.
func (db *database) addFact(ctx context.Context, name, value string) error {
	_, err := db.ExecContext(ctx, db.backend.Flavor.text(shape{kind: insertFact}), name, value)
	return err
}
