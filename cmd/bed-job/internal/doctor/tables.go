package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/logrow"
	"github.com/bedsql/bed/txlog"
)

// table is one of ours as the schema has it.
type table struct {
	name    string
	columns []string
}

var (
	createTable  = regexp.MustCompile(`(?ms)^CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)`)
	createColumn = regexp.MustCompile("(?m)^  [`\"]?([a-z0-9_]+)[`\"]? +(?:VARCHAR|LONGTEXT|MEDIUMTEXT|TEXT|BIGINT|INT|INTEGER|SMALLINT|DOUBLE|CHAR)")
	createIndex  = regexp.MustCompile(`(?m)^(?:CREATE INDEX IF NOT EXISTS| +KEY) (\w+)`)
)

// ours gives the tables, and their indexes, that should be in a database.
func ours(driver string, isLog bool) (tables []table, indexes []string) {
	text, err := attempt.ReceiptSchema(driver)
	if isLog {
		text, err = txlog.Schema(driver)
	}
	if err != nil {
		return nil, nil
	}
	for _, m := range createTable.FindAllStringSubmatch(text, -1) {
		t := table{name: m[1]}
		for _, c := range createColumn.FindAllStringSubmatch(m[2], -1) {
			t.columns = append(t.columns, c[1])
		}
		tables = append(tables, t)
	}
	for _, m := range createIndex.FindAllStringSubmatch(text, -1) {
		indexes = append(indexes, m[1])
	}
	return tables, indexes
}

// ourTables are those of bed in a database.
type ourTables struct{ *patient }

// look looks for the tables, their columns, and what the account may do with them.
func (p ourTables) look(ctx context.Context) {
	tables, indexes := ours(p.Driver, p.isLog)
	part := "--targets"
	if p.isLog {
		part = "--log"
	}
	create := fmt.Sprintf("run what bed-job schema %s %s prints, there", p.Driver, part)
	if p.schema() != "" {
		create = fmt.Sprintf("run what bed-job schema %s %s prints, in a schema %s there", p.Driver, part, p.schema())
	}
	whole := true
	for _, t := range tables {
		if p.schema() != "" {
			t.name = attempt.Receipts{Schema: p.schema()}.Table(p.Target.Dialect.Flavor)
		}
		there, err := dbserver.Columns(ctx, p.conn, t.name)
		switch {
		case err != nil && dberr.Of(err).Denied():
			p.find("rights", fmt.Sprintf("the account may not read the table %s", t.name), p.grant(ctx, t.name))
		case err != nil && p.isLog:
			whole = false
			p.find("table", fmt.Sprintf("the table %s is missing or cannot be read: %s", t.name, p.x.errorOf(err)), create+"; bed-job run does so itself if the account may create tables")
		case err != nil:
			p.withoutReceipts(ctx, create)
		default:
			if lacks := slices.DeleteFunc(slices.Clone(t.columns), func(c string) bool { return slices.Contains(there, c) }); len(lacks) > 0 {
				whole = false
				p.find("column", fmt.Sprintf("the table %s lacks %s", t.name, strings.Join(lacks, ", ")), "an older version made it: bed-job migrate brings it up to date, and prints how with --dry-run")
			}
			p.rights(ctx, t.name)
		}
	}
	if p.isLog && whole {
		p.indexes(ctx, indexes)
	}
	if !p.isLog {
		p.remembered()
	}
}

// schema is the one that a target's receipts have of their own.
func (p ourTables) schema() string {
	if p.isLog {
		return ""
	}
	return p.Target.ReceiptSchema
}

// remembered compares that with what the log remembers.
func (p ourTables) remembered() {
	if said, known := p.x.schemas[logrow.ReceiptSchema(p.Name)]; known && said != p.schema() {
		p.find("receipt-schema", fmt.Sprintf("%s is %q, but the log remembers %q for its receipts: exactly-once writes with that setting are refused, and entries say their own", attempt.SchemaParam, p.schema(), said),
			"give the job the DSN that the applications have; to move the receipts, see docs/exactly-once.md, Changing the schema")
	}
}

// withoutReceipts is for a target without the table of receipts: it needs the
// table only for writes that are delivered exactly once, and makes it itself
// where it may.
func (p ourTables) withoutReceipts(ctx context.Context, create string) {
	if p.needsReceipts(ctx) {
		p.find("receipts", "the table bed_receipt is missing, and the log holds entries that are to leave receipts there: those that it held are lost, and work whose receipt is lost may be applied twice",
			create+"; look at these entries before they are delivered: bed-job list --verify")
		return
	}
	if !p.mayCreate(ctx) {
		p.find("receipts", "the table bed_receipt is missing, and the account may not create it: nothing can be delivered there exactly once", create)
	}
}

// rights finds out whether the account may do what the program does with a table.
func (p ourTables) rights(ctx context.Context, table string) {
	var lacks []string
	switch p.Driver {
	case "mysql":
		// EXPLAIN requires the rights of what it explains, and does nothing.
		for _, r := range []struct{ right, statement string }{
			{"INSERT", "EXPLAIN INSERT INTO " + table + " SELECT * FROM " + table + " WHERE 1 = 0"},
			{"UPDATE", "EXPLAIN UPDATE " + table + " SET " + p.anyColumn(ctx, table) + " = NULL WHERE 1 = 0"},
			{"DELETE", "EXPLAIN DELETE FROM " + table + " WHERE 1 = 0"},
		} {
			if _, err := p.rows(ctx, r.statement); err != nil && dberr.Of(err).Denied() {
				lacks = append(lacks, r.right)
			}
		}
	case "postgres":
		for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			if p.text(ctx, "SELECT has_table_privilege($1::text, $2::text)::text", table, right) == "false" {
				lacks = append(lacks, right)
			}
		}
	}
	if table == "bed_audit" { // append-only: no more is needed
		lacks = slices.DeleteFunc(lacks, func(r string) bool { return r == "UPDATE" || r == "DELETE" })
	}
	if len(lacks) > 0 {
		p.find("rights", fmt.Sprintf("the account lacks the rights %s on %s", strings.Join(lacks, ", "), table), p.grant(ctx, table))
	}
}

func (p ourTables) anyColumn(ctx context.Context, table string) string {
	names, err := dbserver.Columns(ctx, p.conn, table)
	if err != nil || len(names) == 0 {
		return "id"
	}
	return "`" + strings.ReplaceAll(names[0], "`", "``") + "`"
}

// grant is the statement that gives the rights.
func (p ourTables) grant(ctx context.Context, table string) string {
	who := p.text(ctx, "SELECT CURRENT_USER")
	if user, host, ok := strings.Cut(who, "@"); p.Driver == "mysql" && ok {
		who = "'" + user + "'@'" + host + "'"
	}
	if who == "" {
		who = "the account"
	}
	return fmt.Sprintf("as an administrator: GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s", table, who)
}

// indexes looks for those that claiming needs.
func (p ourTables) indexes(ctx context.Context, want []string) {
	var query string
	switch p.Driver {
	case "mysql":
		query = "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
	case "postgres":
		query = "SELECT indexname FROM pg_indexes WHERE schemaname = ANY(current_schemas(false))"
	default:
		query = "SELECT name FROM sqlite_master WHERE type = 'index'"
	}
	rows, err := p.rows(ctx, query)
	if err != nil {
		return
	}
	for _, name := range want {
		if !slices.ContainsFunc(rows, func(r []string) bool { return r[0] == name }) {
			p.find("index", fmt.Sprintf("the index %s is missing: the job reads more of the table than it needs, in each round", name),
				fmt.Sprintf("create it as bed-job schema %s --log says", p.Driver))
		}
	}
}

// errorOf keeps an error to its first line.
func (x *examination) errorOf(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// mayCreate reports whether the account may create tables; true if that is not
// known.
func (p ourTables) mayCreate(ctx context.Context) bool {
	switch p.Driver {
	case "postgres":
		if p.schema() != "" {
			return p.text(ctx, "SELECT COALESCE((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = $1), has_database_privilege(current_database(), 'CREATE'))::text", p.schema()) != "false"
		}
		return p.text(ctx, "SELECT has_schema_privilege(current_schema(), 'CREATE')::text") != "false"
	case "sqlite":
		return true
	}
	in := p.place
	if p.schema() != "" {
		in = p.schema()
	}
	grants, err := p.rows(ctx, "SHOW GRANTS")
	if err != nil {
		return true
	}
	for _, r := range grants {
		rights, where, ok := strings.Cut(strings.TrimPrefix(r[0], "GRANT "), " ON ")
		if !ok { // a role, whose rights are not shown
			return true
		}
		if !strings.Contains(rights, "ALL PRIVILEGES") && !slices.Contains(strings.Split(rights, ", "), "CREATE") {
			continue
		}
		where, _, _ = strings.Cut(where, " TO ")
		schema := strings.Trim(strings.TrimSuffix(where, ".*"), "`")
		if where == "*.*" || strings.ContainsAny(schema, "%_\\") || strings.EqualFold(schema, in) || strings.EqualFold(where, "`"+in+"`.`bed_receipt`") {
			return true
		}
	}
	return false
}
