package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/txlog"
)

// ourTables examines bed's tables and the account's rights on them.
func (p *patient) ourTables(ctx context.Context) {
	part, schema := "--targets", attempt.TargetSchema
	if p.isLog {
		part, schema = "--log", txlog.Schema
	}
	text, err := schema(p.Driver)
	if err != nil {
		return // there is one for each driver
	}
	create := fmt.Sprintf("run what bed-job schema %s %s prints, there", p.Driver, part)
	if p.Target.ReceiptSchema != "" {
		create += ", in the schema " + p.Target.ReceiptSchema
	}
	for _, t := range tables.Of(p.Target.Dialect.Flavor, text) {
		name := attempt.Receipts{Schema: p.Target.ReceiptSchema}.Placed(p.Target.Dialect.Flavor, t.Name)
		there, err := tables.Columns(ctx, p.db, name)
		switch {
		case err != nil && strings.Contains(err.Error(), "row-level security"):
			p.find("row-security", "the session has row_security off, and policies hide rows of "+name+" from the account: it is refused", "remove row_security from the DSN, and give the account BYPASSRLS or policies")
		case err != nil && dberr.Of(err).Denied():
			p.find("rights", fmt.Sprintf("the account may not read the table %s", name), p.grant(ctx, name))
		case err != nil && p.isLog:
			p.find("table", fmt.Sprintf("the table %s is missing or cannot be read: %s", name, errorOf(err)), create+"; bed-job run does so itself if the account may create tables")
		case err != nil && t.Name == "bed_order":
			// Only writes under order keys need it, and the first one creates it.
			needed := p.isNeeded(ctx, `SELECT DISTINCT t.data_source FROM transaction_log AS t JOIN
				(SELECT head AS id FROM bed_order_key WHERE head <> '' UNION SELECT unit_id FROM bed_order_queue) AS o ON o.id = t.id`)
			p.findIf(needed && !p.mayCreate(ctx, name), "order", "the table bed_order is missing, and the account may not create it: the entries under order keys that the log holds cannot be delivered there", create)
		case err != nil:
			p.withoutReceipts(ctx, name, create)
		default:
			if lacks := t.Lacks(there); len(lacks) > 0 {
				p.find("column", fmt.Sprintf("the table %s lacks %s", name, strings.Join(lacks, ", ")), "an older version made it: bed-job migrate brings it up to date, and prints how with --dry-run")
			} else {
				p.definition(ctx, t, name)
			}
			p.rights(ctx, t, name)
		}
	}
	said, known := p.x.known[tables.ReceiptSchema(p.Name)]
	p.findIf(!p.isLog && known && said != p.Target.ReceiptSchema, "receipt-schema", fmt.Sprintf("%s is %q, but the log remembers %q for its receipts: exactly-once writes with that setting are refused, and entries say their own", attempt.SchemaParam, p.Target.ReceiptSchema, said),
		"give the job the DSN that the applications have; to move the receipts, see docs/exactly-once.md, Changing the schema")
	switch p.Driver {
	case "mysql":
		p.hidden(ctx)
	case "postgres":
		p.rowSecurity(ctx)
		p.published(ctx)
	}
}

// definition compares a table that has all columns with the expected definition.
func (p *patient) definition(ctx context.Context, t tables.Table, name string) {
	f := p.Target.Dialect.Flavor
	found, err := tables.Place{Flavor: f, Schema: p.Target.ReceiptSchema}.Read(ctx, p.db, t.Name)
	if err != nil {
		p.x.add(&p.x.report.Unseen, "%s: the definition of %s cannot be read: %s", p.where, name, errorOf(err))
		return
	}
	p.columns(f, t, name, found)
	p.findIf(!t.HasKey(found.Indexes), "key", fmt.Sprintf("the table %s has no primary key (%s): what is sent twice stands there twice, and a write under a receipt or key is applied again or out of order", name, strings.Join(t.Key, ", ")),
		"remove what stands there twice, then "+t.AddKey(name)+", or bed-job migrate")
	for _, want := range t.Indexes {
		there := slices.ContainsFunc(found.Indexes, func(i tables.Index) bool { return slices.Equal(i.Columns, want.Columns) && i.Partial == want.Partial })
		p.findIf(!there, "index", fmt.Sprintf("the index %s (%s) is missing: the job reads more of the table than it needs, in each round", want.Name, strings.Join(want.Columns, ", ")),
			fmt.Sprintf("create it as bed-job schema %s --log says", p.Driver))
	}
	refuses := found.Constraints
	for _, i := range found.Indexes {
		if i.Unique && slices.ContainsFunc(t.Key, func(key string) bool { return !slices.Contains(i.Columns, key) }) {
			refuses = append(refuses, "unique index "+i.Name)
		}
	}
	p.findIf(len(refuses) > 0, "constraint", fmt.Sprintf("the table %s has constraints that its schema does not know, and may refuse what is written there: %s", name, list(refuses)), "drop them: ALTER TABLE … DROP CONSTRAINT, or DROP INDEX")
	p.findIf(len(found.Triggers) > 0, "trigger", fmt.Sprintf("the table %s is acted on by more than bed: %s. What it removes or changes is lost without notice, what it refuses is not written", name, list(found.Triggers)), "drop it: DROP TRIGGER, DROP EVENT or DROP RULE; or disable it")
	if p.Driver != "mysql" {
		return
	}
	p.findIf(found.Engine != "" && !strings.Contains(transactional, "'"+strings.ToUpper(found.Engine)+"'"), "engine", fmt.Sprintf("the table %s is kept by %s, which has no transactions: nothing that bed promises holds", name, found.Engine),
		"ALTER TABLE "+name+" ENGINE = InnoDB, while neither applications nor jobs run")
	p.findIf(p.isLog && found.Collation != "" && !strings.HasPrefix(found.Collation, "utf8mb4"), "charset", fmt.Sprintf("the table %s has the collation %s: SQL and values that it cannot hold are refused, or stored as other letters", name, found.Collation),
		fmt.Sprintf("ALTER TABLE %s with the character sets of bed-job schema mysql --log", name))
}

func (p *patient) columns(f sqltext.Flavor, t tables.Table, name string, found *tables.Found) {
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
	p.findIf(len(differ) > 0, "definition", fmt.Sprintf("the table %s is not as its schema has it, and refuses, cuts or confuses what is written there: %s", name, strings.Join(differ, "; ")), strings.Join(alter, "; "))
}

// withoutReceipts checks a target without the table of receipts. The table is needed only for
// writes under ExactlyOnce, and created on first use if the account may do so.
func (p *patient) withoutReceipts(ctx context.Context, table, create string) {
	if p.isNeeded(ctx, "SELECT DISTINCT data_source FROM transaction_log WHERE receipt <> '' AND parked IN (0, 1)") {
		p.find("receipts", "the table bed_receipt is missing, and the log holds entries that are to leave receipts there: those that it held are lost, and work whose receipt is lost may be applied twice",
			create+"; look at these entries before they are delivered: bed-job list --verify")
		return
	}
	p.findIf(!p.mayCreate(ctx, table), "receipts", "the table bed_receipt is missing, and the account may not create it: nothing can be delivered there exactly once", create)
}

// needless are the rights that neither jobs nor operators use: docs/table.md, Rights.
var needless = map[string][]string{
	"transaction_log": {"INSERT"}, "bed_order_key": {"INSERT"}, "bed_order_queue": {"UPDATE"},
	"bed_log": {"DELETE"}, "bed_attempt": {"UPDATE"}, "bed_audit": {"UPDATE", "DELETE"},
}

// rights checks the account's rights to the program's statements on a table.
func (p *patient) rights(ctx context.Context, t tables.Table, table string) {
	var lacks []string
	for _, r := range []struct{ right, statement string }{
		{"INSERT", "INSERT INTO " + table + " SELECT * FROM " + table + " WHERE 1 = 0"},
		{"UPDATE", "UPDATE " + table + " SET " + t.Quoted(t.Columns[0]) + " = NULL WHERE 1 = 0"},
		{"DELETE", "DELETE FROM " + table + " WHERE 1 = 0"},
	} {
		if p.denied(ctx, r.statement) {
			lacks = append(lacks, r.right)
		}
	}
	needless := needless[t.Name]
	if t.Name == "bed_log" && p.Driver != "mysql" { // there INSERT … ON DUPLICATE KEY UPDATE needs it
		needless = append(slices.Clip(needless), "UPDATE")
	}
	lacks = slices.DeleteFunc(lacks, func(r string) bool { return slices.Contains(needless, r) })
	if len(lacks) > 0 {
		p.find("rights", fmt.Sprintf("the account lacks the rights %s on %s", strings.Join(lacks, ", "), table), p.grant(ctx, table))
	}
}

// denied reports whether the account may not run a statement. EXPLAIN requires the same rights, and
// changes nothing.
func (p *patient) denied(ctx context.Context, statement string) bool {
	_, err := p.rows(ctx, "EXPLAIN "+statement)
	return err != nil && dberr.Of(err).Denied()
}

// errorOf keeps an error to its first line.
func errorOf(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// mayCreate reports whether the account may create the table of receipts; true if unknown.
func (p *patient) mayCreate(ctx context.Context, table string) bool {
	switch p.Driver {
	case "postgres":
		return p.text(ctx, `SELECT COALESCE((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = COALESCE(NULLIF($1::text, ''), current_schema())),
			has_database_privilege(current_database(), 'CREATE'))::text`, p.Target.ReceiptSchema) != "false"
	case "mysql": // it checks the rights of what it prepares, and does nothing
		s, err := p.db.PrepareContext(ctx, "CREATE TABLE "+table+" (id INT)")
		if err != nil {
			return !dberr.Of(err).Denied()
		}
		_ = s.Close()
	}
	return true
}

// tables examines the tables from a query. Each row has the problem of a table, or no problem. A
// target's account must be able to write to at least one.
func (p *patient) tables(ctx context.Context, query, check, means, remedy string) {
	rows, err := p.rows(ctx, query)
	if err != nil {
		return
	}
	var wrong []string
	writable := p.isLog || len(rows) == 0
	for i, r := range rows {
		if r[1] != "" {
			wrong = append(wrong, r[0]+" ("+r[1]+")")
		}
		writable = writable || i < 50 && p.mayWrite(ctx, r[0])
	}
	p.findIf(len(wrong) > 0, check, "tables are "+means+": "+list(wrong), remedy)
	if !writable {
		p.find("rights", "the account may write to none of the tables there", p.grant(ctx, "the tables"))
	}
}

// mayWrite reports whether the account may insert, update or delete in a table: one of these is
// enough, and so are a few columns.
func (p *patient) mayWrite(ctx context.Context, table string) bool {
	if p.Driver == "postgres" {
		return p.text(ctx, `SELECT (has_table_privilege($1::regclass, 'DELETE') OR has_any_column_privilege($1::regclass, 'INSERT, UPDATE'))::text`, table) != "false"
	}
	return !p.denied(ctx, "DELETE FROM "+table+" WHERE 1 = 0") || !p.denied(ctx, "INSERT INTO "+table+" () VALUES ()") ||
		p.text(ctx, `SELECT COUNT(*) FROM (SELECT table_schema, privilege_type FROM information_schema.table_privileges UNION ALL SELECT table_schema, privilege_type FROM information_schema.schema_privileges
			UNION ALL SELECT table_schema, privilege_type FROM information_schema.column_privileges) AS r WHERE table_schema = DATABASE() AND privilege_type IN ('INSERT', 'UPDATE')`) != "0"
}

// grant returns the statement that grants the rights on tables.
func (p *patient) grant(ctx context.Context, tables string) string {
	return fmt.Sprintf("as an administrator: GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO the account %s", tables, p.text(ctx, "SELECT CURRENT_USER"))
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func list(names []string) string {
	if len(names) > 5 {
		return strings.Join(names[:5], ", ") + " and others"
	}
	return strings.Join(names, ", ")
}

// tooMuch matches server-wide MySQL rights beyond the needs of delivery.
var tooMuch = regexp.MustCompile(`\b(ALL PRIVILEGES|SUPER|FILE|SHUTDOWN|PROCESS|RELOAD|CREATE USER|GRANT OPTION|REPLICATION \w+|BINLOG \w+|CONNECTION ADMIN|SYSTEM_USER|SYSTEM_VARIABLES_ADMIN)\b`)

// account warns of rights far beyond DML: writers of the log share them.
func (p *patient) account(ctx context.Context) {
	var may []string
	switch p.Driver {
	case "mysql":
		rows, _ := p.rows(ctx, "SHOW GRANTS")
		for _, r := range rows {
			rights, _, all := strings.Cut(r[0], " ON *.*")
			if _, of, schema := strings.Cut(r[0], "GRANT ALL PRIVILEGES ON "); schema && !all {
				name, _, _ := strings.Cut(of, " TO ")
				may = append(may, "ALL PRIVILEGES on "+name)
			}
			if all {
				if strings.Contains(r[0], " WITH GRANT OPTION") {
					rights += ", GRANT OPTION"
				}
				may = append(may, tooMuch.FindAllString(rights, -1)...)
			}
		}
	case "postgres":
		rows, _ := p.rows(ctx, `SELECT w FROM (SELECT CASE WHEN rolsuper THEN 'superuser' END AS w FROM pg_roles WHERE rolname = current_user
			UNION ALL SELECT CASE WHEN rolcreaterole THEN 'CREATEROLE' END FROM pg_roles WHERE rolname = current_user
			UNION ALL SELECT CASE WHEN rolreplication THEN 'REPLICATION' END FROM pg_roles WHERE rolname = current_user
			UNION ALL SELECT CASE WHEN rolbypassrls THEN 'BYPASSRLS' END FROM pg_roles WHERE rolname = current_user
			UNION ALL SELECT rolname::text FROM pg_roles WHERE rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files', 'pg_write_all_data')
				AND pg_has_role(current_user, oid, 'USAGE') AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)) AS a WHERE w IS NOT NULL`)
		for _, r := range rows {
			if may = append(may, r[0]); r[0] == "superuser" {
				break
			}
		}
	}
	if slices.Sort(may); len(may) > 0 {
		p.x.add(&p.x.report.Warnings, "%s: the account may do far more than a delivery needs (%s), and so may whoever writes to transaction_log: give the job an account with SELECT, INSERT, UPDATE and DELETE on its tables",
			p.where, list(slices.Compact(may)))
	}
}

// hidden reports events hidden from the account.
func (p *patient) hidden(ctx context.Context) {
	_, err := p.rows(ctx, "SHOW EVENTS")
	const which = "%s: events that change bed's tables cannot be seen without the right EVENT: %s"
	switch {
	case err == nil:
	case is("ON")(p, p.vars["event_scheduler"]):
		p.x.add(&p.x.report.Unseen, which, p.where, errorOf(err))
	case p.isLog:
		p.x.add(&p.x.report.Notes, which, p.where, "the event scheduler is off, so that none runs now")
	}
}

// rowSecurity reports tables with policies that hide rows from the account.
func (p *patient) rowSecurity(ctx context.Context) {
	rows, _ := p.rows(ctx, `SELECT quote_ident(c.relname)::text FROM pg_class c WHERE c.relkind IN ('r', 'p') AND row_security_active(c.oid)
		AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) ORDER BY 1`)
	var names []string
	for _, r := range rows {
		names = append(names, r[0])
	}
	switch {
	case names == nil:
	case p.isLog:
		p.find("row-security", "row-level security hides rows from the account, or refuses them: "+list(names), "ALTER TABLE … DISABLE ROW LEVEL SECURITY, or a policy that lets the account see and write every row")
	default:
		p.find("row-security", "row-level security applies to the account: "+list(names)+". A write changes only the rows that its policies show, and counts as delivered though it changed none",
			"give the job's account policies for the rows that applications write, or BYPASSRLS; RequireRows has such a write refused")
	}
}

// published reports publications of all tables. A subscriber without bed's tables stops there.
func (p *patient) published(ctx context.Context) {
	rows, _ := p.rows(ctx, "SELECT quote_ident(pubname)::text FROM pg_publication WHERE puballtables ORDER BY 1")
	if len(rows) == 0 {
		return
	}
	remedy := "run what bed-job schema postgres --targets (of a log, --log) prints at each subscriber, or publish the application's tables by name"
	what := fmt.Sprintf("the publication %s is FOR ALL TABLES: replication stops at the first row of a table that a subscriber lacks, such as bed_receipt", rows[0][0])
	if p.text(ctx, "SELECT to_regclass($1)::text", attempt.Receipts{Schema: p.Target.ReceiptSchema}.Placed(p.Target.Dialect.Flavor, "bed_receipt")) == "" && !p.isLog {
		p.find("publication", what+", which the first exactly-once write makes", remedy)
		return
	}
	p.x.add(&p.x.report.Warnings, "%s: %s: %s", p.where, what, remedy)
}

// empty reports a target without any table: as a rule it is the wrong database.
func (p *patient) empty(ctx context.Context) {
	query := map[string]string{
		"mysql": `SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name NOT IN ('bed_receipt', 'bed_order')`,
		"postgres": `SELECT COUNT(*)::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'f')
			AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%' AND c.relname NOT IN ('bed_receipt', 'bed_order')`,
		"sqlite": `SELECT COUNT(*) FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT IN ('bed_receipt', 'bed_order') AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`,
	}[p.Driver]
	p.findIf(!p.isLog && query != "" && p.text(ctx, query) == "0", "database", "the database has no table but bed's own, or none that the account may see: nothing can be delivered there",
		"fix the database's name in the DSN, have the application make its tables, or grant the account rights on them")
}
