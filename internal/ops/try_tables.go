package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// NotUndone says of each database what a rollback does not undo there.
var NotUndone = map[txlog.Flavor][]string{
	txlog.FlavorMySQL:    {"numbers that AUTO_INCREMENT and sequences gave out are not given back", elsewhere},
	txlog.FlavorPostgres: {"numbers that sequences gave out are not given back", elsewhere},
}

const elsewhere = "what triggers and functions did elsewhere (tables without transactions, files, other servers, messages) is not undone"

// transactional are the engines of MySQL and MariaDB that roll back.
var transactional = []string{"innodb", "rocksdb", "tokudb", "ndbcluster", "ndb"}

// transactional refuses what a rollback would not undo: a MySQL table without
// transactions that the statements name. It does not look behind views, nor at what
// triggers and functions write; of these the server warns at the ROLLBACK.
func (t *trier) transactional(ctx context.Context) error {
	if t.target.Dialect.Flavor != txlog.FlavorMySQL {
		return nil
	}
	seen := map[string]bool{}
	for _, statement := range t.unit.Statements {
		schema, before := sql.NullString{}, ""
		for token := range sqltext.Tokens(sqltext.MySQL, 0, statement.SQL) {
			switch {
			case token.IsName() || token.Kind == sqltext.String && strings.HasPrefix(token.Text, `"`) && len(token.Text) > 1:
				name := token.Name()
				if key := schema.String + "." + name; !seen[key] {
					seen[key] = true
					engine, err := t.engine(ctx, schema, name)
					switch {
					case err != nil:
						return err
					case engine != "" && !slices.Contains(transactional, strings.ToLower(engine)):
						return fmt.Errorf("%w: it cannot be tried: the table %s has no transactions (%s), and a rollback would not undo what it does there", ErrInvalid, name, engine)
					}
				}
				schema, before = sql.NullString{}, name
			case token.Text == ".":
				schema = sql.NullString{String: before, Valid: before != ""}
			default:
				schema, before = sql.NullString{}, ""
			}
		}
	}
	return nil
}

// engine gives the engine of a table, empty if there is none of that name, or none
// that the account may see: its statement will fail on it.
func (t *trier) engine(ctx context.Context, schema sql.NullString, name string) (string, error) {
	var engine sql.NullString
	err := t.conn.QueryRowContext(ctx, `SELECT engine FROM information_schema.tables
WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?`, schema, name).Scan(&engine)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", err
	}
	return engine.String, nil
}
