package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/txlog"
)

// ourTables are those of bed in a database.
type ourTables struct{ *patient }

// ours describes the tables that should be in the database.
func (p ourTables) ours() []tables.Table {
	text, err := attempt.ReceiptSchema(p.Driver)
	if p.isLog {
		text, err = txlog.Schema(p.Driver)
	}
	if err != nil {
		return nil
	}
	return tables.Of(p.Target.Dialect.Flavor, text)
}

// look looks for the tables, what they are, and what the account may do with them.
func (p ourTables) look(ctx context.Context) {
	part := "--targets"
	if p.isLog {
		part = "--log"
	}
	create := fmt.Sprintf("run what bed-job schema %s %s prints, there", p.Driver, part)
	if p.schema() != "" {
		create = fmt.Sprintf("run what bed-job schema %s %s prints, in a schema %s there", p.Driver, part, p.schema())
	}
	for _, t := range p.ours() {
		name := t.Name
		if p.schema() != "" {
			name = attempt.Receipts{Schema: p.schema()}.Table(p.Target.Dialect.Flavor)
		}
		there, err := tables.Columns(ctx, p, name)
		switch {
		case err != nil && dberr.Of(err).Denied():
			p.find("rights", fmt.Sprintf("the account may not read the table %s", name), p.grant(ctx, name))
		case err != nil && p.isLog:
			p.find("table", fmt.Sprintf("the table %s is missing or cannot be read: %s", name, p.x.errorOf(err)), create+"; bed-job run does so itself if the account may create tables")
		case err != nil:
			p.withoutReceipts(ctx, create)
		default:
			if lacks := t.Lacks(there); len(lacks) > 0 {
				p.find("column", fmt.Sprintf("the table %s lacks %s", name, columnNames(lacks)), "an older version made it: bed-job migrate brings it up to date, and prints how with --dry-run")
			} else {
				p.definition(ctx, t, name)
			}
			p.rights(ctx, name, there)
		}
	}
	if !p.isLog {
		p.remembered()
	}
}

func columnNames(columns []tables.Column) string {
	all := make([]string, len(columns))
	for i, c := range columns {
		all[i] = c.Name
	}
	return strings.Join(all, ", ")
}

// definition compares a table that has all columns with what it should be.
func (p ourTables) definition(ctx context.Context, t tables.Table, name string) {
	f := p.Target.Dialect.Flavor
	found, err := tables.Place{Flavor: f, Schema: p.schema()}.Read(ctx, p, t.Name)
	if err != nil {
		p.x.unseen("%s: the definition of %s cannot be read: %s", p.where, name, p.x.errorOf(err))
		return
	}
	p.columns(f, t, name, found)
	if !t.HasKey(found.Indexes) {
		p.find("key", fmt.Sprintf("the table %s has no primary key (%s): what is sent twice stands there twice, and a write under a receipt or key is applied again", name, strings.Join(t.Key, ", ")),
			"remove what stands there twice, then "+t.AddKey(name)+", or bed-job migrate")
	}
	for _, want := range t.Indexes {
		if !slices.ContainsFunc(found.Indexes, func(i tables.Index) bool { return slices.Equal(i.Columns, want.Columns) && i.Partial == want.Partial }) {
			p.find("index", fmt.Sprintf("the index %s (%s) is missing: the job reads more of the table than it needs, in each round", want.Name, strings.Join(want.Columns, ", ")),
				fmt.Sprintf("create it as bed-job schema %s --log says", p.Driver))
		}
	}
	refuses := found.Constraints
	for _, i := range found.Indexes {
		if i.Unique && slices.ContainsFunc(t.Key, func(key string) bool { return !slices.Contains(i.Columns, key) }) {
			refuses = append(refuses, "unique index "+i.Name)
		}
	}
	if len(refuses) > 0 {
		p.find("constraint", fmt.Sprintf("the table %s has constraints that its schema does not know, and may refuse what is written there: %s", name, list(refuses)), "drop them: ALTER TABLE … DROP CONSTRAINT, or DROP INDEX")
	}
	if len(found.Triggers) > 0 {
		p.find("trigger", fmt.Sprintf("the table %s is acted on by more than bed: %s. What it removes or changes is lost without notice, what it refuses is not written", name, list(found.Triggers)), "drop it: DROP TRIGGER, DROP EVENT or DROP RULE; or disable it")
	}
	if p.Driver != "mysql" {
		return
	}
	if found.Engine != "" && !slices.Contains(transactional, strings.ToUpper(found.Engine)) {
		p.find("engine", fmt.Sprintf("the table %s is kept by %s, which has no transactions: nothing that bed promises holds", name, found.Engine),
			"ALTER TABLE "+name+" ENGINE = InnoDB, while neither applications nor jobs run")
	}
	if p.isLog && found.Collation != "" && !strings.HasPrefix(found.Collation, "utf8mb4") {
		p.find("charset", fmt.Sprintf("the table %s has the collation %s: SQL and values that it cannot hold are refused, or stored as other letters", name, found.Collation),
			fmt.Sprintf("ALTER TABLE %s with the character sets of bed-job schema mysql --log", name))
	}
}

// columns compares each column.
func (p ourTables) columns(f sqltext.Flavor, t tables.Table, name string, found *tables.Found) {
	var differ, alter []string
	for _, c := range found.Columns {
		i := slices.IndexFunc(t.Columns, func(want tables.Column) bool { return want.Name == c.Name })
		if i < 0 {
			if !c.Nullable && c.Default == "" && !c.Generated {
				differ = append(differ, c.Name+", which the schema does not know, takes no NULL and has no default")
				alter = append(alter, "drop "+c.Name+" or give it a default")
			}
			continue
		}
		want := t.Columns[i]
		if d := want.Differences(f, c); d != "" {
			differ = append(differ, c.Name+" "+d)
			alter = append(alter, t.Alter(name, want))
		}
	}
	if len(differ) > 0 {
		p.find("definition", fmt.Sprintf("the table %s is not as its schema has it, and refuses, cuts or confuses what is written there: %s", name, strings.Join(differ, "; ")), strings.Join(alter, "; "))
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
	if said, known := p.x.schemas[tables.ReceiptSchema(p.Name)]; known && said != p.schema() {
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
func (p ourTables) rights(ctx context.Context, table string, columns []string) {
	var lacks []string
	switch p.Driver {
	case "mysql":
		// EXPLAIN requires the rights of what it explains, and does nothing.
		for _, r := range []struct{ right, statement string }{
			{"INSERT", "EXPLAIN INSERT INTO " + table + " SELECT * FROM " + table + " WHERE 1 = 0"},
			{"UPDATE", "EXPLAIN UPDATE " + table + " SET " + quote(columns[0]) + " = NULL WHERE 1 = 0"},
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
