// Package entries leaves an entry of each kind waiting in a log. It uses bed's public names only, so
// that scripts/test-upgrade.sh can also compile it in an older version.
package entries

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// DataSources are the target's names in the log. The group that is compensated has its first part
// under the first one.
var DataSources = []string{"accounts", "others"}

// Tables make the application's table in the target.
var Tables = []string{
	"CREATE TABLE account (id VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL, note VARCHAR(80))",
	"INSERT INTO account (id, n) VALUES ('plain', 1), ('once', 1), ('unit-a', 1), ('unit-b', 1), ('key', 1), ('order', 1), ('rows', 1), ('whole', 1), ('undone', 1)",
}

// Delivered are the rows once all entries are delivered: each takes effect once, and order in its
// order.
var Delivered = map[string]string{
	"plain": "2 it's \\ \"ä\"", "once": "2 ", "unit-a": "2 ", "unit-b": "3 ", "key": "2 ", "order": "5 ", "rows": "2 ", "whole": "3 ", "undone": "1 compensated",
}

// A database says how a kind of database is opened, and how its table is locked.
type database struct {
	driver  string
	target  func(dsn string) (delivery.Target, error)
	connect func(delivery.Target, bedsql.Config) (driver.Connector, error)
	// lock locks the table against writers, in a session that unlock ends.
	lock, unlock string
	// hasty returns a DSN whose sessions hardly wait for locks.
	hasty func(dsn string) string
}

var databases = map[string]database{
	"mysql": {"mysql", mysql.Target, mysql.NewConnector, "LOCK TABLES account WRITE", "UNLOCK TABLES",
		func(dsn string) string { return dsn + "&lock_wait_timeout=1" }},
	"postgres": {"pgx", postgres.Target, postgres.NewConnector, "BEGIN; LOCK TABLE account IN EXCLUSIVE MODE", "ROLLBACK",
		func(dsn string) string { return dsn + "&lock_timeout=200" }},
	"sqlite": {"sqlite", sqlite.Target, sqlite.NewConnector, "BEGIN IMMEDIATE", "ROLLBACK",
		func(dsn string) string { return strings.ReplaceAll(dsn, "busy_timeout(5000)", "busy_timeout(0)") }},
}

// A Writer writes to the target through bed.
type Writer struct {
	kind                       string
	log                        *txlog.SQLStorage
	bare, least, exact, second *sql.DB
}

// Open opens the log and the target.
func Open(ctx context.Context, kind, logDSN, targetDSN string) (w *Writer, err error) {
	d := databases[kind]
	w = &Writer{kind: kind}
	defer func() {
		if err != nil {
			_ = w.Close()
		}
	}()
	if w.log, err = txlog.Open(ctx, kind, logDSN); err != nil {
		return w, err
	}
	if w.bare, err = sql.Open(d.driver, targetDSN); err != nil {
		return w, err
	}
	target, err := d.target(d.hasty(targetDSN))
	if err != nil {
		return w, err
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	for _, open := range []struct {
		db         **sql.DB
		dataSource string
		guarantee  bedsql.Guarantee
	}{{&w.least, DataSources[0], bedsql.AtLeastOnce}, {&w.exact, DataSources[0], bedsql.ExactlyOnce}, {&w.second, DataSources[1], bedsql.ExactlyOnce}} {
		target.DataSource = open.dataSource
		connector, err := d.connect(target, bedsql.Config{Storage: w.log, Guarantee: open.guarantee, NoSyncRetry: true, Logger: quiet})
		if err != nil {
			return w, err
		}
		*open.db = sql.OpenDB(connector)
	}
	return w, nil
}

// Close closes what Open opened.
func (w *Writer) Close() error {
	for _, pool := range []*sql.DB{w.bare, w.least, w.exact, w.second} {
		if pool != nil {
			_ = pool.Close()
		}
	}
	if w.log == nil {
		return nil
	}
	return w.log.Close()
}

// text numbers PostgreSQL's placeholders.
func (w *Writer) text(query string) string {
	if w.kind != "postgres" {
		return query
	}
	parts := strings.Split(query, "?")
	for i := range parts[1:] {
		parts[i+1] = "$" + strconv.Itoa(i+1) + parts[i+1]
	}
	return strings.Join(parts, "")
}

const add = "UPDATE account SET n = n + ? WHERE id = ?"

// accepted is nil if the write is left to the job.
func accepted(what string, err error) error {
	if outcome := bedsql.OutcomeOf(err); outcome != bedsql.OutcomeAccepted {
		return fmt.Errorf("%s is %v, not accepted: %w", what, outcome, err)
	}
	return nil
}

// Leave leaves the entries: it locks the table account while it writes.
func (w *Writer) Leave(ctx context.Context) error {
	// These writes make bed's tables there, so that the log knows the places of receipts.
	for _, db := range []*sql.DB{w.exact, w.second} {
		if _, err := db.ExecContext(bedsql.WithOrderKey(ctx, "earlier"), w.text(add), 0, "once"); err != nil {
			return err
		}
	}
	holder, err := w.bare.Conn(ctx)
	if err != nil {
		return err
	}
	defer holder.Close()
	if _, err := holder.ExecContext(ctx, databases[w.kind].lock); err != nil {
		return err
	}
	if err := w.write(ctx); err != nil {
		return err
	}
	_, err = holder.ExecContext(ctx, databases[w.kind].unlock)
	return err
}

func (w *Writer) write(ctx context.Context) error {
	_, err := w.least.ExecContext(ctx, w.text("UPDATE account SET n = ?, note = ? WHERE id = ?"), 2, Delivered["plain"][2:], "plain")
	if err := accepted("plain", err); err != nil {
		return err
	}
	keyed, _ := bedsql.WithIdempotencyKey(ctx, "request-1")
	ordered := bedsql.WithOrderKey(ctx, "order")
	for _, write := range []struct {
		what string
		ctx  context.Context
		text string
		args []any
	}{
		{"once", ctx, add, []any{1, "once"}},
		{"a write under a key", keyed, add, []any{1, "key"}},
		{"the first in its order", ordered, "UPDATE account SET n = n * ? WHERE id = ?", []any{2, "order"}},
		{"the second in its order", ordered, add, []any{3, "order"}},
		{"one that must change a row", bedsql.RequireRows(ctx, 1), add, []any{1, "rows"}},
	} {
		_, err := w.exact.ExecContext(write.ctx, w.text(write.text), write.args...)
		if err := accepted(write.what, err); err != nil {
			return err
		}
	}
	return w.leaveGroups(ctx)
}

// leaveGroups leaves a local transaction and two groups. The job delivers the first group, and
// compensates the second one: its second part must change a row, and changes none.
func (w *Writer) leaveGroups(ctx context.Context) error {
	unit, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	tx, err := w.exact.BeginTx(unit, nil)
	if err != nil {
		return err
	}
	for n, id := range []string{"unit-a", "unit-b"} {
		if _, err := tx.ExecContext(unit, w.text(add), n+1, id); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if err := accepted("a local transaction", soft.End(ctx)); err != nil {
		return err
	}
	for _, group := range []struct{ first, second string }{{"whole", "whole"}, {"undone", "nobody"}} {
		ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		if _, err = w.exact.ExecContext(ctx, w.text(add), 1, group.first); err != nil {
			return err
		}
		if _, err = w.exact.ExecContext(soft.Compensation(ctx), w.text("UPDATE account SET n = n - ?, note = ? WHERE id = ?"), 1, "compensated", group.first); err != nil {
			return err
		}
		if _, err = w.second.ExecContext(bedsql.RequireRows(ctx, 1), w.text(add), 1, group.second); err != nil {
			return err
		}
		if err := accepted("a group", soft.End(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// Resend sends the request under the key once more, and reports whether it met the first one's
// receipt.
func (w *Writer) Resend(ctx context.Context) (replayed bool, err error) {
	ctx, key := bedsql.WithIdempotencyKey(ctx, "request-1")
	_, err = w.exact.ExecContext(ctx, w.text(add), 1, "key")
	return key.Replayed(), err
}
