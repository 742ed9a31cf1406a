package tables

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
)

// Querier is a *sql.DB or a *sql.Conn of the bare driver.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Place is the place of a table.
type Place struct {
	Flavor sqltext.Flavor
	// Schema is the schema, in MySQL the database; empty means the place of unqualified names.
	Schema string
}

// Columns returns the names of a table's columns, in lower case.
func Columns(ctx context.Context, q Querier, table string) ([]string, error) {
	names, _, err := read(ctx, q, "SELECT * FROM "+table+" WHERE 1 = 0")
	for i, n := range names {
		names[i] = strings.ToLower(n)
	}
	return names, err
}

// Found is a table in a database.
type Found struct {
	Columns []Column
	Indexes []Index
	// Engine and Collation are MySQL's.
	Engine, Collation string
	// Triggers act on its rows beside bed, and Constraints reject rows: each with its kind,
	// "trigger audit".
	Triggers, Constraints []string
}

// Read reads a table's whole definition as far as the account may see it.
func (p Place) Read(ctx context.Context, q Querier, table string) (*Found, error) {
	found := &Found{}
	rows, err := Texts(ctx, q, p.columns(table))
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		c := Column{Name: strings.ToLower(r[0]), Nullable: r[3] == "YES", Default: strings.Trim(r[4], "'"), Collation: r[5], Generated: r[6] != ""}
		length, _ := strconv.ParseInt(r[2], 10, 64)
		if c.Kind, c.Size = kindOf(p.Flavor, r[1], length); c.Default == "NULL" {
			c.Default = "" // as MariaDB says it
		}
		found.Columns = append(found.Columns, c)
	}
	if found.Indexes, err = p.ReadIndexes(ctx, q, table); err != nil {
		return nil, err
	}
	if p.Flavor == sqltext.MySQL {
		if rows, err = Texts(ctx, q, `SELECT engine, table_collation FROM information_schema.tables WHERE `+p.in("table_schema", "table_name", table)); err != nil {
			return nil, err
		}
		for _, r := range rows {
			found.Engine, found.Collation = r[0], r[1]
		}
	}
	if found.Triggers, err = p.named(ctx, q, p.triggers(table)); err != nil {
		return nil, err
	}
	found.Constraints, err = p.named(ctx, q, p.constraints(table))
	return found, err
}

// in names a table of MySQL's catalogue.
func (p Place) in(schema, name, table string) string {
	return schema + " = " + p.schema() + " AND " + name + " = '" + table + "'"
}

func (p Place) schema() string {
	if p.Schema == "" {
		return "DATABASE()"
	}
	return "'" + p.Schema + "'"
}

// oid names a table of PostgreSQL's catalogue.
func (p Place) oid(table string) string {
	if p.Schema != "" {
		table = p.Schema + "." + table
	}
	return "to_regclass('" + table + "')"
}

func (p Place) columns(table string) string {
	return p.Flavor.Pick(sqltext.Texts{MySQL: `SELECT column_name, data_type, character_maximum_length, is_nullable, column_default, collation_name,
    CASE WHEN extra LIKE '%auto_increment%' OR extra LIKE '%generated%' THEN extra ELSE '' END
  FROM information_schema.columns WHERE ` + p.in("table_schema", "table_name", table) + ` ORDER BY ordinal_position`,
		Postgres: `SELECT column_name::text, data_type::text, character_maximum_length::text, is_nullable::text, column_default::text, collation_name::text,
    CASE WHEN is_identity = 'YES' OR is_generated <> 'NEVER' THEN 'generated' ELSE '' END
  FROM information_schema.columns i JOIN pg_class c ON c.relname = i.table_name JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = i.table_schema
  WHERE c.oid = ` + p.oid(table) + ` ORDER BY ordinal_position`,
		SQLite: `SELECT name, CASE WHEN instr(type, '(') > 0 THEN substr(type, 1, instr(type, '(') - 1) ELSE type END, '',
    CASE WHEN "notnull" THEN 'NO' ELSE 'YES' END, dflt_value, '', CASE WHEN hidden > 1 THEN 'generated' ELSE '' END
  FROM pragma_table_xinfo('` + table + `') ORDER BY cid`})
}

// Indexes is the query for a table's indexes; IndexesOf reads its result.
func (p Place) Indexes(table string) string {
	return p.Flavor.Pick(sqltext.Texts{MySQL: `SELECT index_name, CASE WHEN non_unique = 0 THEN 'unique' ELSE '' END, CASE WHEN sub_part IS NULL THEN '' ELSE 'partial' END, column_name
  FROM information_schema.statistics WHERE ` + p.in("table_schema", "table_name", table) + ` ORDER BY index_name, seq_in_index`,
		Postgres: `SELECT c.relname::text, CASE WHEN i.indisunique THEN 'unique' ELSE '' END,
    CASE WHEN i.indpred IS NULL AND i.indimmediate AND i.indisvalid THEN '' ELSE 'partial' END, COALESCE(a.attname, '')::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(no, place)
  LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.no
  WHERE i.indrelid = ` + p.oid(table) + ` ORDER BY c.relname, k.place`,
		SQLite: `SELECT l.name, CASE WHEN l."unique" THEN 'unique' ELSE '' END, CASE WHEN l.partial THEN 'partial' ELSE '' END, COALESCE(i.name, '')
  FROM pragma_index_list('` + table + `') l JOIN pragma_index_info(l.name) i ORDER BY l.name, i.seqno`})
}

// IndexesOf reads the result of Indexes.
func IndexesOf(rows [][]string) (all []Index) {
	for _, r := range rows {
		if len(all) == 0 || all[len(all)-1].Name != r[0] {
			all = append(all, Index{Name: r[0]})
		}
		i := &all[len(all)-1]
		i.Unique, i.Partial = r[1] != "", i.Partial || r[2] != ""
		i.Columns = append(i.Columns, strings.ToLower(r[3]))
	}
	return all
}

func (p Place) triggers(table string) []string {
	switch p.Flavor {
	case sqltext.MySQL:
		named := "`?" + table + "([^a-z0-9_]|$)"
		return []string{
			`SELECT 'trigger', trigger_name FROM information_schema.triggers WHERE ` + p.in("event_object_schema", "event_object_table", table),
			// The enabled events that may change or empty it.
			"SELECT 'event', event_name FROM information_schema.events WHERE status = 'ENABLED'" +
				" AND event_definition REGEXP '(?i)(^|[^a-z0-9_])(DELETE|UPDATE|REPLACE|TRUNCATE|DROP|ALTER|RENAME|LOCK)([^a-z0-9_]|$)'" +
				" AND (event_schema = " + p.schema() + " AND event_definition REGEXP '(?i)(^|[^a-z0-9_.`])" + named + "'" +
				" OR event_definition REGEXP CONCAT('(?i)(^|[^a-z0-9_])', " + p.schema() + ", '`? *[.] *" + named + "'))",
		}
	case sqltext.Postgres:
		return []string{
			`SELECT 'trigger', tgname::text FROM pg_trigger WHERE tgrelid = ` + p.oid(table) + ` AND NOT tgisinternal AND tgenabled <> 'D'`,
			`SELECT 'rule', rulename::text FROM pg_rewrite WHERE ev_class = ` + p.oid(table) + ` AND rulename <> '_RETURN' AND ev_enabled <> 'D'`,
			`SELECT 'row security of', relname::text FROM pg_class WHERE oid = ` + p.oid(table) + ` AND relrowsecurity`,
		}
	}
	return []string{`SELECT 'trigger', name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = '` + table + `'`}
}

func (p Place) constraints(table string) []string {
	switch p.Flavor {
	case sqltext.MySQL:
		return []string{
			`SELECT LOWER(constraint_type), constraint_name FROM information_schema.table_constraints WHERE constraint_type IN ('CHECK', 'FOREIGN KEY') AND ` + p.in("table_schema", "table_name", table),
			`SELECT DISTINCT 'foreign key', constraint_name FROM information_schema.key_column_usage WHERE ` + p.in("referenced_table_schema", "referenced_table_name", table),
		}
	case sqltext.Postgres:
		return []string{`SELECT CASE contype WHEN 'c' THEN 'check' WHEN 'f' THEN 'foreign key' ELSE 'exclusion' END, conname::text FROM pg_constraint
  WHERE contype IN ('c', 'f', 'x') AND (conrelid = ` + p.oid(table) + ` OR confrelid = ` + p.oid(table) + `)`}
	}
	return []string{
		`SELECT 'check of', name FROM sqlite_master WHERE type = 'table' AND lower(name) = '` + table + `' AND (sql LIKE '%CHECK (%' OR sql LIKE '%CHECK(%')`,
		`SELECT 'foreign key to', "table" FROM pragma_foreign_key_list('` + table + `')`,
	}
}

func (p Place) named(ctx context.Context, q Querier, queries []string) (all []string, err error) {
	for _, query := range queries {
		rows, err := Texts(ctx, q, query)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			all = append(all, r[0]+" "+r[1])
		}
	}
	return all, nil
}

// ReadIndexes reads a table's indexes.
func (p Place) ReadIndexes(ctx context.Context, q Querier, table string) ([]Index, error) {
	rows, err := Texts(ctx, q, p.Indexes(table))
	return IndexesOf(rows), err
}

// Texts runs a query and returns its rows as text; NULL is empty.
func Texts(ctx context.Context, q Querier, query string, args ...any) ([][]string, error) {
	_, all, err := read(ctx, q, query, args...)
	return all, err
}

// Each calls f for each row of a query, unless the query failed.
func Each(rows *sql.Rows, err error, f func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func read(ctx context.Context, q Querier, query string, args ...any) (names []string, all [][]string, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }()
	if names, err = rows.Columns(); err != nil {
		return nil, nil, err
	}
	for rows.Next() {
		cells, to := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range cells {
			to[i] = &cells[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, nil, err
		}
		row := make([]string, len(cells))
		for i, c := range cells {
			row[i] = c.String
		}
		all = append(all, row)
	}
	return names, all, rows.Err()
}

// Differences describes how a column in a database differs from c; empty if it can hold
// bed's values.
func (c Column) Differences(f sqltext.Flavor, found Column) string {
	var all []string
	switch {
	case found.Kind != c.Kind:
		all = append(all, fmt.Sprintf("is of the type %s instead of %s", found.Kind, c.Kind))
	case found.Size < c.Size && c.Size == boundless:
		all = append(all, fmt.Sprintf("takes %d characters instead of any number", found.Size))
	case found.Size < c.Size && c.Kind == "text":
		all = append(all, fmt.Sprintf("takes %d characters instead of %d", found.Size, c.Size))
	case found.Size < c.Size:
		all = append(all, fmt.Sprintf("has %d bits instead of %d", found.Size, c.Size))
	}
	switch {
	case c.Nullable && !found.Nullable:
		all = append(all, "takes no NULL")
	case !c.Nullable && found.Nullable:
		all = append(all, "takes NULL")
	}
	if c.Default != "" && found.Default != c.Default {
		all = append(all, "has not the default "+c.Default)
	}
	if f != sqltext.SQLite && c.Kind == "text" && found.Kind == "text" && !collates(f, c.Collation, found.Collation) {
		all = append(all, "has the collation "+cmp.Or(found.Collation, "of the database")+" instead of "+
			cmp.Or(c.Collation, f.Pick(sqltext.Texts{MySQL: "one of utf8mb4", Postgres: "the database's", SQLite: ""})))
	}
	if found.Generated {
		all = append(all, "is generated")
	}
	return strings.Join(all, ", ")
}

// collates reports whether a collation is suitable. Columns with a collation in the schema
// are compared by bytes: ids, tokens and names.
func collates(f sqltext.Flavor, want, found string) bool {
	switch {
	case found == want:
		return true
	case f == sqltext.Postgres:
		return want == "" || found == "POSIX" || strings.HasPrefix(found, "C.") || found == "ucs_basic"
	case want == "":
		return strings.HasPrefix(found, "utf8mb4")
	default:
		charset, _, _ := strings.Cut(want, "_")
		return strings.HasSuffix(found, "_bin") && (strings.HasPrefix(found, charset) || strings.HasPrefix(found, "utf8"))
	}
}
