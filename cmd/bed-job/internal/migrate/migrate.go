// Package migrate brings bed's tables up to date that an older version made: it
// adds what the schema has and the database lacks, and neither drops nor changes
// anything.
package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/txlog"
)

var (
	table  = regexp.MustCompile(`(?ms)^CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)[^;]*;?`)
	column = regexp.MustCompile("^  ([`\"]?)([a-z0-9_]+)[`\"]? +([A-Z]+\\b.*)$")
	key    = regexp.MustCompile(`^  KEY (\w+) (\(.*\)),?`)
	index  = regexp.MustCompile(`(?m)^CREATE INDEX IF NOT EXISTS (\w+) ON (\w+) [^;]*`)
	remark = regexp.MustCompile(`,?\s*(--.*)?$`)
)

// fill is the value for existing rows in a column in which 0 or an empty text
// would be wrong.
var fill = map[string]string{
	"in_doubt":        "1", // nobody noted whether an attempt may have been applied
	"statement_count": "1",
}

// Database is one whose tables are brought up to date.
type Database struct {
	*sql.DB
	// Flavor is that of its SQL.
	Flavor txlog.Flavor
	// Schema is the text that creates the tables.
	Schema string
	// In is the schema that the one table is in, and Table its qualified name, where
	// unqualified names lead elsewhere.
	In, Table string
	// OnlyThere leaves alone what is not there: a target makes its table when it needs it.
	OnlyThere bool
}

// Plan gives the statements that are missing, in their order; none if nothing is.
func (db Database) Plan(ctx context.Context) ([]string, error) {
	indexes, err := db.indexes(ctx)
	if err != nil {
		return nil, err
	}
	var plan []string
	there := map[string]bool{}
	for _, m := range table.FindAllStringSubmatch(db.Schema, -1) {
		name := m[1]
		exists, err := db.exists(ctx, name)
		if db.Table != "" {
			name = db.Table
		}
		if err != nil {
			return nil, err
		}
		if !exists {
			if !db.OnlyThere {
				plan = append(plan, strings.TrimRight(strings.TrimSpace(m[0]), ";"))
				there[name] = true
			}
			continue
		}
		there[name] = true
		columns, err := dbserver.Columns(ctx, db, name)
		if err != nil {
			return nil, err
		}
		for line := range strings.SplitSeq(m[2], "\n") {
			if c := column.FindStringSubmatch(line); c != nil && !slices.Contains(columns, c[2]) {
				plan = append(plan, db.add(name, c[1]+c[2]+c[1], c[2], remark.ReplaceAllString(c[3], ""))...)
			}
			if k := key.FindStringSubmatch(line); k != nil && !slices.Contains(indexes, k[1]) {
				plan = append(plan, fmt.Sprintf("ALTER TABLE %s ADD KEY %s %s", name, k[1], k[2]))
			}
		}
	}
	for _, m := range index.FindAllStringSubmatch(db.Schema, -1) {
		if there[m[2]] && !slices.Contains(indexes, m[1]) {
			plan = append(plan, strings.TrimSpace(m[0]))
		}
	}
	return plan, nil
}

// add gives the statements that add a column to a table that may hold rows.
func (db Database) add(table, quoted, name, definition string) []string {
	kind, _, _ := strings.Cut(definition, " ")
	text := !strings.HasPrefix(kind, "BIGINT") && !strings.HasPrefix(kind, "INT") && !strings.HasPrefix(kind, "SMALLINT") && !strings.HasPrefix(kind, "DOUBLE")
	add := fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", table, quoted, definition)
	var more []string
	if strings.Contains(definition, "NOT NULL") && !strings.Contains(definition, "DEFAULT") {
		value := fill[name]
		switch {
		case value == "" && text:
			value = "''"
		case value == "":
			value = "0"
		}
		switch {
		case db.Flavor == txlog.FlavorMySQL && text:
			// A text there takes no default, and rows get the empty one all the same.
		case db.Flavor == txlog.FlavorSQLite:
			add += " DEFAULT " + value // it cannot be taken away again
		default:
			add += " DEFAULT " + value
			more = append(more, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT", table, quoted))
		}
	}
	if name == "transaction_id" {
		more = append(more, "UPDATE "+table+" SET transaction_id = id WHERE transaction_id = ''")
	}
	return append([]string{add}, more...)
}

func (db Database) strings(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, strings.ToLower(s))
	}
	return all, rows.Err()
}

func (db Database) exists(ctx context.Context, table string) (bool, error) {
	if db.In != "" {
		found, err := db.strings(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = '"+db.In+"' AND table_name = '"+table+"'")
		return len(found) > 0, err
	}
	found, err := db.strings(ctx, db.Flavor.Pick(
		"SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?",
		"SELECT 'there' FROM (SELECT to_regclass($1::text) AS c) AS t WHERE c IS NOT NULL",
		"SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"), table)
	return len(found) > 0, err
}

func (db Database) indexes(ctx context.Context) ([]string, error) {
	return db.strings(ctx, db.Flavor.Pick(
		"SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()",
		"SELECT indexname::text FROM pg_indexes WHERE schemaname = ANY(current_schemas(false))",
		"SELECT name FROM sqlite_master WHERE type = 'index'"))
}
