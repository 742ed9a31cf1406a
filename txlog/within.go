package txlog

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
)

// This file has the log's statements for a session of the application, in whose transaction
// bedsql.WithTx writes entries. They do not depend on that session's character set, SQL mode,
// search path or clock.

// visitor makes the statements.
type visitor struct {
	sqltext.Flavor
	// at is the schema, with a dot.
	at       string
	identity string
	// compounds is set for MariaDB, which runs several statements as one.
	compounds bool
}

func (s *SQLStorage) visitor(ctx context.Context) (*visitor, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	schema, err := schemaOf(ctx, s.db)
	if err != nil {
		return nil, s.failed("finding its own schema", err)
	}
	return &visitor{s.db.backend.Flavor, schema + ".", s.identity, s.db.backend.Flavor == sqltext.MySQL && s.writer.returning}, nil
}

// Within implements [logdb.SQL].
func (s sqlLog) Within(ctx context.Context, session logdb.Session, most int, units ...*Unit) ([]logdb.Insert, error) {
	v, err := s.visitor(ctx)
	if err != nil {
		return nil, err
	}
	for _, u := range units {
		if err := validate(u, entry.MinLease, s.token); err != nil {
			return nil, err
		}
		u.AtOnce = true
	}
	if err := v.issue(ctx, session, units); err != nil {
		return nil, s.failed("issuing the numbers of order keys", v.elsewhere(err))
	}
	var rows []*row
	for _, u := range units {
		settings := encodeSettings(u)
		for i := range u.Statements {
			r := rowOf(u, i, settings)
			r.size = rowOverhead + len(r.text) + len(r.params) + len(r.settings)
			if u.Behind != "" {
				r.lease = entry.WaitsFrom
			}
			rows = append(rows, &r)
		}
	}
	w := writer{db: s.db, maxPacket: most}
	var inserts []logdb.Insert
	for len(rows) > 0 {
		n := w.portion(rows)
		inserts, rows = append(inserts, v.insert(rows[:n])), rows[n:]
	}
	return inserts, nil
}

// Fits implements [logdb.SQL].
func (s sqlLog) Fits(st *entry.Statement, most int) error {
	text, params := encode(st)
	// What is not plain ASCII takes two characters a byte there.
	size := rowOverhead + 2*len(text) + 2*len(params)
	if most > 0 && size > most/4 {
		return unstorable{fmt.Errorf("txlog: the statement is too big for a transaction of WithTx: with its parameters it takes %d bytes in the log's INSERT, a quarter of max_allowed_packet there is %d", size, most/4)}
	}
	return nil
}

// Reach implements [logdb.SQL]. The INSERT adds no row: it finds a table, a column or a right that
// is missing. On SQLite it would wait for the transaction.
func (s sqlLog) Reach(ctx context.Context, session logdb.Session) (r logdb.Reach, err error) {
	v, err := s.visitor(ctx)
	if err != nil {
		return r, err
	}
	f := s.db.backend.Flavor
	var facts [][]string
	switch f {
	case sqltext.MySQL: // the level has one name in MySQL, another in older MariaDBs, and both in newer ones
		facts, err = session.Query(ctx, "SHOW SESSION VARIABLES WHERE Variable_name IN ('max_allowed_packet', 'tx_isolation', 'transaction_isolation', 'innodb_snapshot_isolation')")
	case sqltext.Postgres:
		facts, err = session.Query(ctx, "SELECT 'isolation', pg_catalog.current_setting('default_transaction_isolation') UNION ALL SELECT 'innodb_snapshot_isolation', 'ON'")
	}
	for _, fact := range facts {
		switch strings.ToLower(fact[0]) {
		case "max_allowed_packet":
			r.MaxPacket, _ = strconv.Atoi(fact[1])
		case "innodb_snapshot_isolation":
			r.Snapshots = fact[1] == "ON"
		default:
			r.Isolation = strings.ToUpper(strings.ReplaceAll(fact[1], "-", " "))
		}
	}
	var there [][]string
	if err == nil {
		there, err = session.Query(ctx, "SELECT 1"+v.log())
	}
	if err == nil && len(there) == 0 {
		err = errOther
	}
	if err == nil && f != sqltext.SQLite {
		none := " SELECT " + v.values(&row{}) + f.Pick(sqltext.Texts{MySQL: " FROM DUAL", Postgres: "", SQLite: ""}) + " WHERE 1 = 0"
		_, err = session.Exec(ctx, v.into()+none)
	}
	if err != nil {
		return r, s.failed("looking for it in the transaction's database", v.elsewhere(err))
	}
	return r, nil
}

// errOther is the error of a session that sees another log.
var errOther = fmt.Errorf("%w: its session sees another log there", ErrLogElsewhere)

// elsewhere turns err into an ErrLogElsewhere if it shows that the session does not reach the log.
func (v *visitor) elsewhere(err error) error {
	if !errors.Is(err, ErrLogElsewhere) && isElsewhere(v.Flavor, err) {
		return fmt.Errorf("%w: %w", ErrLogElsewhere, err)
	}
	return err
}

// Elsewhere implements [logdb.SQL].
func (s sqlLog) Elsewhere(err error, written int64) error {
	if written == 0 {
		return errOther
	}
	return (&visitor{Flavor: s.db.backend.Flavor}).elsewhere(err)
}

// issue issues the missing order numbers of units, key by key in the same order as other writers.
// A unit that is not the first under a key waits. The transaction then holds the rows of the keys
// locked. It waits at most a second for each, but for MySQL's own time there.
func (v *visitor) issue(ctx context.Context, s logdb.Session, units []*Unit) error {
	for _, u := range units {
		u.Order = slices.Clone(u.Order)
	}
	by := byKey(units)
	if len(by) == 0 {
		return nil
	}
	f := v.Flavor
	if f == sqltext.Postgres {
		before, err := s.Query(ctx, "SELECT pg_catalog.current_setting('lock_timeout'), pg_catalog.set_config('lock_timeout', '1s', true)")
		if err != nil {
			return err
		}
		defer func() { // deferred triggers run at COMMIT; after an error there is none
			_, _ = s.Query(ctx, "SELECT pg_catalog.set_config('lock_timeout', "+v.Literal(before[0][0])+", true)")
		}()
	}
	briefly := ""
	if f == sqltext.MySQL {
		briefly = lockBriefly
	}
	for _, k := range slices.Sorted(maps.Keys(by)) {
		for _, u := range by[k] {
			rows := "SELECT " + v.Literal(k) + ", " + v.SessionClock() + " * 1000, " + v.Literal(u.ID) + ", 0" + f.Pick(sqltext.Texts{MySQL: " FROM DUAL", Postgres: "", SQLite: " WHERE 1 = 1"})
			if _, err := s.Exec(ctx, briefly+issuing(f, v.at, rows)); err != nil {
				return err
			}
			got, err := s.Query(ctx, "SELECT last, head FROM "+v.at+"bed_order_key WHERE id = "+v.Literal(k))
			if err != nil {
				return err
			}
			if len(got) != 1 {
				return errors.New("the number was not issued")
			}
			i := slices.IndexFunc(u.Order, func(o entry.Order) bool { return o.Key == k })
			if u.Order[i].Number, err = strconv.ParseInt(got[0][0], 10, 64); err != nil {
				return err
			}
			head := got[0][1]
			if head == u.ID {
				continue
			}
			u.Behind = cmp.Or(u.Behind, head)
			if _, err := s.Exec(ctx, "INSERT INTO "+v.at+"bed_order_queue (key_id, number, unit_id, skipped) SELECT "+
				v.Literal(k)+", "+got[0][0]+", "+v.Literal(u.ID)+", 0"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *visitor) into() string {
	return "INSERT INTO " + v.at + "transaction_log" + columnNames[v.Flavor]
}

// log continues a query that has a row only if the session sees this log.
func (v *visitor) log() string {
	return " FROM " + v.at + "bed_log WHERE name = " + v.Literal(tables.Identity) + " AND value = " + v.Literal(v.identity)
}

// insert returns the INSERT of rows.
func (v *visitor) insert(rows []*row) logdb.Insert {
	in := logdb.Insert{Rows: len(rows), Find: "SELECT 1 FROM " + v.at + "transaction_log WHERE id = " + v.Literal(rows[0].id)}
	if v.Flavor == sqltext.Postgres {
		in.SQL, in.Args = v.arrays(rows)
		return in
	}
	// MariaDB runs both in one message. A SELECT in the INSERT would lock the row of bed_log.
	before, between, after := " ", " UNION ALL ", v.log()
	if v.compounds {
		in.Check, before, between, after = "SELECT 1"+v.log(), " VALUES ", ", ", ""
	}
	var b strings.Builder
	b.WriteString(v.into())
	for i := range rows {
		b.WriteString(before)
		before = between
		if values := v.values(rows[i]); v.compounds {
			b.WriteString("(" + values + ")")
		} else {
			b.WriteString("SELECT " + values)
		}
		b.WriteString(after)
	}
	in.SQL = b.String()
	return in
}

// values lists the values of a row.
func (v *visitor) values(r *row) string {
	var b strings.Builder
	before := ""
	for i := range columns {
		c := &columns[i]
		b.WriteString(before)
		before = ", "
		switch {
		case c.within != "":
			b.WriteString(c.within)
		case c.doubt:
			b.WriteString(strconv.FormatInt(bit(r.receipt != ""), 10))
		case c.text != nil:
			b.WriteString(v.Literal(c.text(r)))
		case c.number != nil: // of next_try_time, the row is due at once or waits
			b.WriteString(strconv.FormatInt(c.number(r), 10))
		case c.time:
			b.WriteString(v.SessionClock())
		default:
			b.WriteString(c.fixed)
		}
	}
	return b.String()
}

// arrays returns PostgreSQL's INSERT of any number of rows, as [insertArrays] does. The last
// argument is the log's identity.
func (v *visitor) arrays(rows []*row) (text string, args []any) {
	var selected, from, names []string
	for i := range columns {
		c, value := &columns[i], "r.c"+strconv.Itoa(i)
		switch {
		case c.within != "":
			value = c.within
		case c.doubt:
			value = "CASE WHEN r.receipt = '' THEN 0 ELSE 1 END"
		case c.isParam():
			kind, array := "bigint[]", ""
			if c.text != nil {
				kind, array = "text[]", arrayOfAll(rows, c.text, sqltext.AppendElement)
			} else {
				array = arrayOfAll(rows, c.number, entry.AppendInt)
			}
			param := "$" + strconv.Itoa(len(args)+1)
			if sqltext.ASCII(array) {
				param += "::" + kind
			} else {
				param, array = "pg_catalog.convert_from(pg_catalog.decode("+param+"::text, 'hex'), 'UTF8')::"+kind, hex.EncodeToString([]byte(array))
			}
			if c.name == "receipt" {
				value = "r.receipt"
			}
			args, from, names = append(args, array), append(from, "pg_catalog.unnest("+param+")"), append(names, value[len("r."):])
		case c.time:
			value = v.SessionClock()
		default:
			value = c.fixed
		}
		selected = append(selected, value)
	}
	args = append(args, v.identity)
	return v.into() + " SELECT " + strings.Join(selected, ", ") + " FROM ROWS FROM (" + strings.Join(from, ", ") + ") AS r (" + strings.Join(names, ", ") + "), " +
		v.at + "bed_log AS log WHERE log.name = '" + tables.Identity + "' AND log.value = $" + strconv.Itoa(len(args)), args
}
