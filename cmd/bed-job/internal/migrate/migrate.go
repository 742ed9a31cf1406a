// Package migrate updates tables made by an older version of bed: it adds missing parts of the
// schema, and neither drops nor changes anything.
package migrate

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
)

// fill is the value of a new column in existing rows if 0 or an empty text would be wrong.
var fill = map[string]string{
	"in_doubt":        "1", // nobody noted whether an attempt may have been applied
	"statement_count": "1",
	"transaction_id":  "id",
	"settings":        "'{}'",
}

// Database is a database with tables to update.
type Database struct {
	*sql.DB
	// Flavor is the flavor of its SQL.
	Flavor sqltext.Flavor
	// Schema is the SQL that creates the tables.
	Schema string
	// Receipts name the schema of the receipts, if unqualified names lead elsewhere.
	Receipts attempt.Receipts
	// OnlyThere leaves missing tables missing: a target creates its tables on first use.
	OnlyThere bool
}

// Plan returns the missing statements, in order.
func (db Database) Plan(ctx context.Context) (plan []string, err error) {
	place := tables.Place{Flavor: db.Flavor, Schema: db.Receipts.Schema}
	for _, t := range tables.Of(place.Flavor, db.Schema) {
		found, err := place.Read(ctx, db, t.Name)
		switch {
		case err != nil:
			return nil, err
		case len(found.Columns) == 0:
			if !db.OnlyThere {
				plan = append(plan, t.Statements()...)
			}
			continue
		}
		name := t.Name
		if place.Schema != "" {
			name = db.Receipts.Placed(db.Flavor, t.Name)
		}
		for _, c := range t.Columns {
			if !slices.ContainsFunc(found.Columns, func(is tables.Column) bool { return is.Name == c.Name }) {
				plan = append(plan, db.add(name, t.Quoted(c), c)...)
			}
		}
		if !t.HasKey(found.Indexes) {
			plan = append(plan, t.AddKey(name))
		}
		for _, want := range t.Indexes {
			if !slices.ContainsFunc(found.Indexes, func(i tables.Index) bool { return i.Name == want.Name }) {
				plan = append(plan, want.Create)
			}
		}
	}
	return plan, nil
}

// add returns the statements that add a column to a table with possible rows.
func (db Database) add(table, quoted string, c tables.Column) []string {
	text := c.Kind != "integer"
	add := fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", table, quoted, c.Definition)
	var more []string
	if !c.Nullable && c.Default == "" {
		value := "''"
		if !text {
			value = cmp.Or(fill[c.Name], "0")
		}
		switch {
		case db.Flavor == sqltext.MySQL && text:
			// A text there takes no default, and rows get the empty one all the same.
		case db.Flavor == sqltext.SQLite:
			add += " DEFAULT " + value // it cannot be taken away again
		default:
			add += " DEFAULT " + value
			more = append(more, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT", table, quoted))
		}
	}
	if value := fill[c.Name]; text && value != "" {
		more = append(more, fmt.Sprintf("UPDATE %s SET %s = %s WHERE %[2]s = ''", table, quoted, value))
	}
	return append([]string{add}, more...)
}
