// Package migrate updates tables made by an older version of bed: it adds missing parts of the
// schema, and neither drops nor changes anything.
package migrate

import (
	"context"
	"database/sql"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
)

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
				plan = append(plan, t.Add(name, c)...)
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
