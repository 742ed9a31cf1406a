package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
)

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
	if !p.isLog && query != "" && p.text(ctx, query) == "0" {
		p.find("database", "the database has no table but bed's own, or none that the account may see: nothing can be delivered there",
			"fix the database's name in the DSN, have the application make its tables, or grant the account rights on them")
	}
}
