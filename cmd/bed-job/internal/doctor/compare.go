package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// skew is how far clocks may be apart: NTP keeps them within milliseconds.
const skew = 5 * time.Second

func (x *examination) compare(seen []*patient) {
	for _, p := range seen {
		p.findIf(p.ahead.Abs() > skew, "clock", fmt.Sprintf("its clock, as sessions of this DSN see it, differs from this machine's by %v: ages, delays and NOW() in SQL mean other times than expected", p.ahead.Round(time.Second)),
			"have NTP or chrony set the clocks of all machines; remove timestamp=… from the DSN")
	}
	x.differ(seen, "mysql", "sql_mode", "sql_mode", "a value that one refuses another changes or cuts")
	x.differ(seen, "mysql", "time_zone", "time zones", "the same time.Time is stored as different hours, and NOW() gives them")
	x.differ(seen, "postgres", "timezone", "time zones", "a timestamp without time zone is stored as different hours, and now() gives them")
	x.connections(seen)
}

// differ reports targets with different values of a session setting. It compares only targets of
// the same product, because defaults differ between products.
func (x *examination) differ(seen []*patient, driver, setting, words, means string) {
	by := map[string]map[string][]string{} // product, value
	for _, p := range seen {
		if p.isLog || p.Driver != driver || p.vars == nil || p.out {
			continue
		}
		if by[p.product] == nil {
			by[p.product] = map[string][]string{}
		}
		v := p.valueOf(setting)
		by[p.product][v] = append(by[p.product][v], p.Name)
	}
	for _, values := range by {
		if len(values) < 2 {
			continue
		}
		var each []string
		for _, v := range slices.Sorted(maps.Keys(values)) {
			each = append(each, fmt.Sprintf("%s (%s)", cmp.Or(v, "empty"), list(values[v])))
		}
		x.findIf(true, "the configuration", setting, fmt.Sprintf("%s differ between data sources: %s. With the same statement %s", words, strings.Join(each, ", "), means),
			fmt.Sprintf("set the same %s in the servers' option files, or in each DSN, the applications' as well as the job's", setting))
	}
}

// valueOf normalizes different spellings of the same setting.
func (p *patient) valueOf(setting string) string {
	v := p.vars[setting]
	if setting == "sql_mode" {
		modes := strings.Split(v, ",")
		slices.Sort(modes)
		return strings.Join(modes, ",")
	}
	if strings.EqualFold(v, "SYSTEM") {
		v = p.vars["system_time_zone"]
	}
	switch strings.ToUpper(v) {
	case "UTC", "ETC/UTC", "+00:00", "GMT", "ETC/GMT", "Z", "UCT", "ETC/UCT", "ZULU", "UNIVERSAL":
		v = "UTC"
	}
	for part := range strings.SplitSeq(p.Target.Settings, ";") {
		if loc, ok := strings.CutPrefix(part, "loc="); ok && loc != "" {
			v += ", loc " + loc
		}
	}
	return v
}

// logConnections is how many connections to the log the job opens at most.
const logConnections = 32

// connections adds up a job's connections to each server.
func (x *examination) connections(seen []*patient) {
	type need struct {
		want, most int
		names      []string
	}
	by := map[string]*need{}
	for _, p := range seen {
		if p.most <= 0 {
			continue
		}
		n := by[p.server]
		if n == nil {
			n = &need{most: p.most}
			by[p.server] = n
		}
		n.most = min(n.most, p.most)
		if n.names = append(n.names, p.where); p.isLog {
			n.want += min(logConnections, x.Job.Concurrency+4)
		} else {
			n.want += x.Job.Concurrency
		}
	}
	for _, n := range by {
		x.findIf(n.want > n.most, "the configuration", "connections", fmt.Sprintf("a job may open %d connections to the server of %s, which gives its account %d: deliveries fail, and applications find none", n.want, list(n.names), n.most),
			"lower jobConfig.concurrency, or raise max_connections (or the account's limit) above what the job and all applications open together")
	}
}

// identities looks for another log with this identity: a copy. Its jobs would purge the receipts of
// the original.
func (p *patient) identities(ctx context.Context) {
	if p.isLog {
		rows, err := p.rows(ctx, "SELECT name, value FROM bed_log")
		p.x.known = map[string]string{}
		for _, r := range rows {
			p.x.known[r[0]] = r[1]
		}
		p.findIf(err == nil && p.x.known[tables.Identity] == "", "identity", "bed_log does not hold the log's identity. If the log was in use, receipts of its writes are taken for another log's, and none is purged",
			"restore the row from a backup; of a new log, start bed-job run or an application: they write it")
	}
	if p.x.known[tables.Identity] == "" {
		return
	}
	places := [][]string{{"", p.place}} // how to name it in a statement, and the place
	switch p.Driver {
	case "mysql":
		places, _ = p.rows(ctx, "SELECT CONCAT('`', REPLACE(table_schema, '`', '``'), '`.'), table_schema FROM information_schema.tables WHERE table_name = 'bed_log'")
	case "postgres":
		places, _ = p.rows(ctx, "SELECT (quote_ident(n.nspname) || '.')::text, (current_database() || '.' || n.nspname)::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = 'bed_log' AND c.relkind = 'r'")
	}
	for _, r := range places {
		if p.isLog && r[1] == p.place || p.samePlace(r[1]) {
			continue
		}
		same := p.text(ctx, "SELECT value FROM "+r[0]+"bed_log WHERE name = 'identity'") == p.x.known[tables.Identity]
		p.findIf(same, "identity", r[1]+" holds another transaction log with the same identity, a copy: its job purges receipts that this log's entries need",
			"delete the copy; or, if it is to be a log of its own, DELETE FROM bed_log WHERE name = 'identity' there: it is given a new one when it is opened next")
	}
}

// atHome reports whether a transaction of this target reaches the log's tables.
func (p *patient) atHome() bool {
	log := p.x.log
	return !p.isLog && p.server != "" && p.server == log.server && (p.Driver != "postgres" || p.vars["current_database()"] == log.vars["current_database()"])
}

// samePlace reports whether a place on this target's server is, as far as known, the log's own. An
// operator must not delete the log as a copy.
func (p *patient) samePlace(place string) bool {
	log := p.x.log
	return !p.isLog && (log.server == p.server || log.server == "" || p.server == "" || p.cluster != "" && log.cluster == p.cluster) && log.place == place
}

// entries examines the oldest entries, and the data sources named in the log.
func (x *examination) entries(ctx context.Context, log *patient) {
	if log.db == nil || log.out {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st, err := txlog.Open(ctx, log.Driver, log.DSN, txlog.WithoutCreate(), txlog.WithMaxConns(1))
	if err != nil {
		known := func(f Finding) bool { return f.Where == log.where && (f.Check == "column" || f.Check == "key") }
		log.findIf(errors.Is(err, txlog.ErrUnusable) && !slices.ContainsFunc(x.report.Findings, known), "unusable", errorOf(err), "bed-job migrate, or do what it says")
		return
	}
	defer func() { _ = st.Close() }()
	targets := map[string]Database{}
	for _, t := range x.Targets {
		targets[t.Name] = t
	}
	names, err := st.DataSources(ctx)
	units, lerr := st.List(ctx, txlog.Filter{Limit: 1000})
	if err = cmp.Or(err, lerr); err != nil {
		x.add(&x.report.Unseen, "the log: its entries cannot be read: %s", errorOf(err))
		return
	}
	for _, name := range names {
		_, ok := targets[name]
		log.findIf(!ok && len(x.Targets) > 0, "unknown-data-source", fmt.Sprintf("entries are to be delivered to %s, which the configuration does not name: no job delivers them", name),
			"add it to targetDataSource; a data source that was renamed keeps its old name there until its entries are gone")
	}
	sessions(ctx, x, units, targets)
	const stale = "SELECT id FROM bed_order_key AS k WHERE head <> '' AND NOT EXISTS (SELECT 1 FROM transaction_log AS l WHERE l.id = k.head) LIMIT 1000"
	keys, err := log.rows(ctx, stale)
	log.findIf(err == nil && len(keys) > 0, "order-key", fmt.Sprintf("the first entry under %d order keys was deleted from the log by hand: what comes after it waits", len(keys)),
		"bed-job run, or run --once, lets it go on; end an entry with bed-job discard")
}

// isNeeded reports whether a query of the log for data sources finds this target.
func (p *patient) isNeeded(ctx context.Context, query string) bool {
	if p.x.log.db == nil {
		return false
	}
	rows, _ := p.x.log.rows(ctx, query)
	return slices.ContainsFunc(rows, func(r []string) bool { return r[0] == p.Name })
}

// maxSessions is how many different sessions, as entries name them, are tried.
const maxSessions = 20

// sessions tries each kind of session that entries need, in the same way as the job. The real
// sessions of the application matter, with the effects of its account, its DSN and any pooler,
// rather than the text of a DSN.
func sessions(ctx context.Context, x *examination, units []*entry.Unit, targets map[string]Database) {
	type kind struct{ dataSource, settings, session, account, place string }
	tried := map[kind]bool{}
	for _, u := range delivered(units) {
		t, ok := targets[u.DataSource]
		k := kind{u.DataSource, u.Settings, u.Session, u.Account, u.Place}
		if !ok || tried[k] || len(tried) == maxSessions {
			continue
		}
		tried[k] = true
		var why *target.ElsewhereError // an unreachable target gives none
		if errors.As(deliverable(ctx, t.Target, u), &why) {
			x.findIf(true, "data source "+t.Name, why.Kind, "entries are not delivered: "+why.Why, why.Remedy)
		}
	}
}

// delivered returns units with the parts of compensations in place of those.
func delivered(units []*entry.Unit) (all []*entry.Unit) {
	for _, u := range units {
		if u.Undo == nil {
			all = append(all, u)
			continue
		}
		for n := range u.Undo.Parts {
			all = append(all, u.Part(n))
		}
	}
	return all
}

// deliverable returns an error if the job would not deliver u, because t has no session for it.
func deliverable(ctx context.Context, t delivery.Target, u *entry.Unit) error {
	if err := target.SameAccount(&t, u); err != nil || u.Settings == t.Settings && u.Session == "" && u.Place == "" {
		return err
	}
	t, err := target.In(t, u)
	if err != nil {
		return err
	}
	conn, _, err := target.Dial(ctx, &t)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return target.SamePlace(ctx, &t, conn, u)
}
