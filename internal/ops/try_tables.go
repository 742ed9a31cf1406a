package ops

import (
	"context"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
)

// NotRolledBack lists the effects that a rollback does not undo, by database.
var NotRolledBack = map[sqltext.Flavor][]string{
	sqltext.MySQL:    {"numbers that AUTO_INCREMENT and sequences gave out are not given back", elsewhere},
	sqltext.Postgres: {"numbers that sequences gave out are not given back", elsewhere},
}

const elsewhere = "what triggers and functions did elsewhere (tables without transactions, files, other servers, messages) is not rolled back"

// transactional are the MySQL and MariaDB engines with rollback.
const transactional = `'innodb', 'rocksdb', 'tokudb', 'ndbcluster', 'ndb'`

// transactional refuses writes that a rollback would not undo: those to a non-transactional MySQL
// table. It checks the table names in the statements, in the named schemas and the session's. It
// does not look behind views, nor at the writes of triggers and functions; for these the server
// warns at the ROLLBACK.
func (t *trier) transactional(ctx context.Context) error {
	if t.target.Dialect.Flavor != sqltext.MySQL {
		return nil
	}
	names := map[string]bool{}
	for _, statement := range t.unit.Statements {
		for token := range sqltext.Tokens(sqltext.MySQL, 0, statement.SQL) {
			if token.IsName() || token.Kind == sqltext.String && strings.HasPrefix(token.Text, `"`) && len(token.Text) > 1 {
				names[token.Name()] = true
			}
		}
	}
	in := sqltext.List(len(names), `?`, `, `)
	var args []any
	for range 2 {
		for name := range names {
			args = append(args, name)
		}
	}
	// A table hidden from the account is not found here: its statement will fail on it.
	rows, err := attempt.Ask(ctx, t.conn, `SELECT table_name, engine FROM information_schema.tables
WHERE LOWER(engine) NOT IN (`+transactional+`) AND table_name IN (`+in+`) AND (table_schema = DATABASE() OR table_schema IN (`+in+`))`, args...)
	if err != nil || len(rows) == 0 {
		return err
	}
	return fmt.Errorf("%w: it cannot be tried: the table %s has no transactions (%s), and a rollback would not undo what it does there", ErrInvalid, attempt.Text(rows[0][0]), attempt.Text(rows[0][1]))
}
