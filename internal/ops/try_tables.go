package ops

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// notes say what a rollback does not undo in a database.
func (t *trier) notes() []string {
	const elsewhere = "what triggers and functions did outside of the transaction (files, other servers, messages) is not undone"
	switch t.target.Dialect.Flavor {
	case txlog.FlavorMySQL:
		return []string{"numbers that AUTO_INCREMENT and sequences gave out are not given back", elsewhere}
	case txlog.FlavorPostgres:
		return []string{"numbers that sequences gave out are not given back", elsewhere}
	}
	return []string{}
}

const (
	// triedNames is how many names in a statement are looked up at most.
	triedNames = 200
	// triedTriggers is how deep triggers are followed.
	triedTriggers = 4
)

var (
	engine = regexp.MustCompile(`(?i)\) ENGINE=(\w+)`)
	// transactional are the engines of MySQL and MariaDB that roll back.
	transactional = []string{"innodb", "rocksdb", "tokudb", "ndbcluster", "ndb"}
)

// transactional refuses what a rollback would not undo: a MySQL table without
// transactions that the statements name, or a trigger on a table that they name.
func (t *trier) transactional(ctx context.Context) error {
	if t.target.Dialect.Flavor != txlog.FlavorMySQL {
		return nil
	}
	seen := map[string]bool{}
	var texts []string
	for _, statement := range t.unit.Statements {
		texts = append(texts, statement.SQL)
	}
	for range triedTriggers {
		var triggers []string
		for _, text := range texts {
			for _, name := range names(text) {
				if seen[name] || len(seen) >= triedNames {
					continue
				}
				seen[name] = true
				kind, view, err := t.engine(ctx, name)
				switch {
				case err != nil:
					return err
				case view != "":
					triggers = append(triggers, view)
					continue
				case kind == "": // no table
					continue
				case !slices.Contains(transactional, strings.ToLower(kind)):
					return fmt.Errorf("%w: it cannot be tried: the table %s has no transactions (%s), a rollback would not undo what it does there", ErrInvalid, name, kind)
				}
				bodies, err := t.triggers(ctx, name)
				if err != nil {
					return err
				}
				triggers = append(triggers, bodies...)
			}
		}
		if texts = triggers; len(texts) == 0 {
			return nil
		}
	}
	return nil
}

// names gives what may be a table in a text, quoted: names, and pairs of names
// with a point between them.
func names(text string) (all []string) {
	quote := func(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
	before, point := "", false
	for token := range sqltext.Tokens(sqltext.MySQL, 0, text) {
		switch {
		case token.IsName() || token.Kind == sqltext.String && strings.HasPrefix(token.Text, `"`):
			if len(token.Text) < 2 && token.Kind != sqltext.Word {
				continue
			}
			name := quote(token.Name())
			all = append(all, name)
			if point {
				all = append(all, before+"."+name)
			}
			before, point = name, false
		case token.Text == ".":
			point = before != ""
		default:
			before, point = "", false
		}
	}
	return all
}

// engine gives the engine of a table, or the text of a view; both empty for
// anything else.
func (t *trier) engine(ctx context.Context, name string) (kind, view string, err error) {
	rows, err := t.conn.QueryContext(ctx, "SHOW CREATE TABLE "+name)
	if err != nil {
		// There is none, or none that the account may see: its statement will fail on it.
		return "", "", ended(ctx, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		return "", "", rows.Err()
	}
	texts := make([]sql.NullString, len(columns))
	into := make([]any, len(columns))
	for i := range texts {
		into[i] = &texts[i]
	}
	if err := rows.Scan(into...); err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrTarget, err)
	}
	if len(texts) < 2 {
		return "", "", nil
	}
	if columns[0] == "View" {
		return "", texts[1].String, nil
	}
	if m := engine.FindStringSubmatch(texts[1].String); m != nil {
		return m[1], "", nil
	}
	return "", "", nil
}

// triggers gives the texts of a table's triggers.
func (t *trier) triggers(ctx context.Context, name string) (bodies []string, err error) {
	from, table := "", name
	if schema, rest, ok := strings.Cut(name, "`.`"); ok {
		from, table = " FROM "+schema+"`", "`"+rest
	}
	table = strings.ReplaceAll(strings.Trim(table, "`"), "``", "`")
	rows, err := t.conn.QueryContext(ctx, "SHOW TRIGGERS"+from+" WHERE `Table` = '"+strings.ReplaceAll(strings.ReplaceAll(table, `\`, `\\`), "'", "''")+"'")
	if err != nil { // the account may not see them
		return nil, ended(ctx, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTarget, err)
	}
	for rows.Next() {
		texts := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range texts {
			into[i] = &texts[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTarget, err)
		}
		for i, column := range columns {
			if column == "Statement" {
				bodies = append(bodies, texts[i].String)
			}
		}
	}
	return bodies, rows.Err()
}

// ended gives err if ctx has ended, else nil.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrTarget, err)
}
