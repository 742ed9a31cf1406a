package ops

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Trial is the result of a trial.
type Trial struct {
	// Rows are the row counts of the statements, in order; -1 if the database does not report a
	// count. They end before a failed statement.
	Rows []int64 `json:"-"`
	// Error is the database's, masked; empty if the whole entry would be applied.
	Error string `json:"error"`
	// Class classifies the error, in the words of the attempts.
	Class string `json:"class,omitempty"`
	// Notes list effects that a rollback does not undo, and other remarks.
	Notes []string `json:"notes"`
	// Took is how long it took.
	Took time.Duration `json:"-"`
}

const (
	// tryFor bounds a trial as a whole.
	tryFor = 9 * time.Second
	// tryLock and tryStatement bound, on the server, the wait for a lock and a
	// statement.
	tryLock      = 3 * time.Second
	tryStatement = 6 * time.Second
)

// Try runs the entry's statements in a local transaction of its target and rolls it back. It waits
// at most 10 s in all and leaves neither locks nor a receipt. It is audited first. The database's
// answer is in the Trial. Errors: txlog.ErrNotFound, txlog.ErrLeased, ErrNoTarget, ErrInvalid
// (the text says why a trial is impossible), or ErrTarget for an unreachable target.
func (s *Store) Try(ctx context.Context, id string, by By) (*Trial, error) {
	if err := by.Check(Try); err != nil {
		return nil, err
	}
	var u *entry.Unit
	if err := s.answer(ctx, func(ctx context.Context) (err error) { u, err = s.log.Get(ctx, id); return err }); err != nil {
		return nil, err
	}
	return s.tryUnit(ctx, u, by)
}

// tryUnit tries a unit in the given form.
func (s *Store) tryUnit(ctx context.Context, u *entry.Unit, by By) (*Trial, error) {
	target, err := s.triable(u)
	if err != nil {
		return nil, err
	}
	if err := s.answer(ctx, func(ctx context.Context) error { return s.journal.AddAudit(ctx, by.record(Try, u.ID, 0)) }); err != nil {
		return nil, noTables(s.fault(err))
	}
	trial, err := Within(ctx, tryFor, func(ctx context.Context) (*Trial, error) { return try(ctx, target, u) })
	switch {
	case err == nil:
		s.complete(ctx, u, trial)
		return trial, nil
	case errors.Is(err, ErrInvalid):
		return nil, &explained{s.cfg.Clean(err.Error()), ErrInvalid}
	}
	return nil, &explained{s.cfg.Clean(err.Error()), ErrTarget}
}

// explained is an error of a given kind whose text is only the reason.
type explained struct {
	text string
	kind error
}

func (e *explained) Error() string        { return e.text }
func (e *explained) Is(target error) bool { return target == e.kind }

// triable returns the target of a unit, or why the unit cannot be tried.
func (s *Store) triable(u *entry.Unit) (to delivery.Target, err error) {
	switch {
	case u.Leased:
		return to, fmt.Errorf("%w: %s", txlog.ErrLeased, u.ID)
	case u.Undo != nil:
		return to, fmt.Errorf("%w: a compensation is not tried: its effect depends on which parts are applied", ErrInvalid)
	case u.Unreadable != nil:
		return to, fmt.Errorf("%w: the entry cannot be read whole: %w", ErrInvalid, u.Unreadable)
	}
	to, err = s.cfg.target(u)
	if err != nil {
		return to, err
	}
	var elsewhere *target.ElsewhereError
	if errors.As(target.SameAccount(&to, u), &elsewhere) {
		return to, fmt.Errorf("%w: %s", ErrInvalid, s.cfg.Clean(elsewhere.Why))
	}
	if !to.Dialect.Flavor.IsSQL() {
		return to, fmt.Errorf("%w: its data source is no database, and has no transaction that could be rolled back", ErrInvalid)
	}
	if err := onlyDML(context.Background(), to.Dialect, nil, u); err != nil {
		return to, err
	}
	for i, statement := range u.Statements {
		if _, err := statement.Args(); err != nil {
			return to, fmt.Errorf("%w: the parameters of statement %d cannot be read", ErrInvalid, i+1)
		}
	}
	return to, nil
}

// onlyDML is the job's own check.
func onlyDML(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit) error {
	var not *attempt.NotOneDML
	err := attempt.OnlyDML(ctx, d, conn, u.Statements)
	if errors.As(err, &not) {
		return fmt.Errorf("%w: statement %d is not a single DML statement and cannot be rolled back safely", ErrInvalid, not.Statement)
	}
	return err
}

// target returns the target of a unit, in a session like its own. The error is ErrNoTarget or
// ErrInvalid, and its text only the reason.
func (c *Config) target(u *entry.Unit) (delivery.Target, error) {
	t, ok := c.Targets[u.DataSource]
	switch {
	case !ok:
		why := cmp.Or(c.Problems[u.DataSource], c.Problems[""], "the configuration's targetDataSource does not have it")
		return t, &explained{c.Clean(why), ErrNoTarget}
	case t.NoSideConnection:
		return t, &explained{"its target is in the memory of another process", ErrInvalid}
	}
	with, err := target.In(t, u)
	var elsewhere *target.ElsewhereError
	if errors.As(err, &elsewhere) {
		return t, &explained{c.Clean(elsewhere.Why), ErrInvalid}
	}
	return with, nil
}

// complete adds remarks to a trial.
func (s *Store) complete(ctx context.Context, u *entry.Unit, t *Trial) {
	if u.NotReplayable != "" {
		t.Notes = append(t.Notes, "the job will not run it: "+u.NotReplayable)
	}
	if u.Receipt == "" {
		return
	}
	if judged, err := s.judge(ctx, u); err == nil && (judged[0].Verdict == Applied || judged[0].Verdict == NeverApplied) {
		t.Notes = append(t.Notes, fmt.Sprintf("%s: a delivery applies nothing any more; %s", judged[0].Short(), judged[0].Advice(u)))
	}
}

// trier is its own connection to a target. Closing it after the trial ends everything left open.
type trier struct {
	conn   driver.Conn
	target delivery.Target
	unit   *entry.Unit
	// id is the connection's on MySQL.
	id string
}

// try makes a trial. On an error it has tried nothing.
func try(ctx context.Context, to delivery.Target, u *entry.Unit) (*Trial, error) {
	conn, _, err := target.Dial(ctx, &to)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	t := &trier{conn: conn, target: to, unit: u}
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	trial, began := &Trial{Rows: []int64{}, Notes: append([]string{}, NotRolledBack[t.target.Dialect.Flavor]...)}, time.Now()
	out, err := t.run(ctx, trial)
	t.rollback(ctx, trial)
	trial.Took = time.Since(began)
	if err != nil {
		return nil, err
	}
	if out.Err != nil {
		trial.Error, trial.Class = errmask.Mask(out.Err.Error(), valuesOf(u)...), out.Class.String()
		if ctx.Err() != nil {
			trial.Error = fmt.Sprintf("no answer within %v: %s", tryFor, trial.Error)
		}
	}
	return trial, nil
}

func (t *trier) exec(ctx context.Context, text string) error {
	_, _, err := attempt.Exec(ctx, t.conn, text, nil)
	return err
}

// prepare bounds the waits of a statement and begins the transaction.
func (t *trier) prepare(ctx context.Context) error {
	before, begin, inside := []string{}, "BEGIN", []string{}
	switch t.target.Dialect.Flavor {
	case sqltext.MySQL:
		// MySQL cannot bound a statement's time; see kill.
		var err error
		if t.id, err = attempt.Setting(ctx, t.conn, "SELECT CONNECTION_ID()"); err != nil {
			return err
		}
		before, begin = []string{fmt.Sprintf("SET SESSION innodb_lock_wait_timeout = %[1]d, lock_wait_timeout = %[1]d, wait_timeout = 20", int(tryLock.Seconds()))}, "START TRANSACTION"
	case sqltext.SQLite:
		before = []string{fmt.Sprintf("PRAGMA busy_timeout = %d", tryLock.Milliseconds())}
	case sqltext.Postgres:
		// These are local to the transaction, so that nothing stays in a pooler's session.
		inside = []string{
			fmt.Sprintf("SET LOCAL lock_timeout = %d", tryLock.Milliseconds()),
			fmt.Sprintf("SET LOCAL statement_timeout = %d", tryStatement.Milliseconds()),
			fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", tryFor.Milliseconds()),
		}
	}
	if err := t.transactional(ctx); err != nil {
		return err
	}
	for _, text := range slices.Concat(before, []string{begin}, inside) {
		if err := t.exec(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// run runs the statements, and has PostgreSQL do the checks of COMMIT. On an error the outcome is
// unknown.
func (t *trier) run(ctx context.Context, trial *Trial) (out attempt.Outcome, err error) {
	if err := onlyDML(ctx, t.target.Dialect, t.conn, t.unit); err != nil {
		return out, err
	}
	for _, statement := range t.unit.Statements {
		args, err := statement.Args()
		if err != nil {
			return out, err
		}
		call := dialect.Call{SQL: statement.SQL, Args: args, Prepared: statement.Prepared, Required: statement.Required}
		if out = attempt.Inside(ctx, t.target.Dialect, t.conn, call, false, false); out.Err != nil {
			return out, nil
		}
		rows := int64(-1)
		if out.Result != nil {
			if n, unknown := out.Result.RowsAffected(); unknown == nil {
				rows = n
			}
		}
		trial.Rows = append(trial.Rows, rows)
	}
	if t.target.Dialect.Flavor == sqltext.Postgres {
		if failed := t.exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); failed != nil {
			out = attempt.Failed(t.target.Dialect, failed, false)
		}
	}
	return out, nil
}

// rollback undoes the trial. If it fails, closing the connection undoes it. A statement that is
// still running is ended by the server or killed by us.
func (t *trier) rollback(ctx context.Context, trial *Trial) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := t.exec(own, "ROLLBACK"); err != nil {
		t.kill(own)
		return
	}
	if t.target.Dialect.Flavor != sqltext.MySQL {
		return
	}
	rows, _ := attempt.Ask(own, t.conn, "SHOW WARNINGS") // level, code, text
	for _, row := range rows {
		if len(row) == 3 && attempt.Number(row[1]) == 1196 {
			trial.Notes = append([]string{fmt.Sprintf("NOT ROLLED BACK: a table without transactions was changed (%s)", attempt.Text(row[2]))}, trial.Notes...)
		}
	}
}

// kill ends an abandoned statement in MySQL, with its locks.
func (t *trier) kill(ctx context.Context) {
	if t.id == "" {
		return
	}
	if conn, err := t.target.Connector.Connect(ctx); err == nil {
		_, _, _ = attempt.Exec(ctx, conn, "KILL "+t.id, nil)
		_ = conn.Close()
	}
}

// NotRolledBack lists the effects that a rollback does not undo, by database.
var NotRolledBack = map[sqltext.Flavor][]string{
	sqltext.MySQL:    {"numbers that AUTO_INCREMENT and sequences gave out are not given back", elsewhere},
	sqltext.Postgres: {"numbers that sequences gave out are not given back", elsewhere},
}

const elsewhere = "what triggers and functions did elsewhere (tables without transactions, files, other servers, messages) is not rolled back"

// transactional are the MySQL and MariaDB engines with rollback.
const transactional = `'innodb', 'rocksdb', 'tokudb', 'ndbcluster', 'ndb'`

// transactional refuses writes that a rollback would not undo: those to a non-transactional MySQL
// table. It checks the table names in the statements, in the named schemas and the session's. It
// does not look behind views, nor at the writes of triggers and functions; for these the server
// warns at the ROLLBACK.
func (t *trier) transactional(ctx context.Context) error {
	if t.target.Dialect.Flavor != sqltext.MySQL {
		return nil
	}
	names := map[string]bool{}
	for _, statement := range t.unit.Statements {
		for token := range sqltext.Tokens(sqltext.MySQL, 0, statement.SQL) {
			if token.IsName() || token.Kind == sqltext.String && strings.HasPrefix(token.Text, `"`) && len(token.Text) > 1 {
				names[token.Name()] = true
			}
		}
	}
	in := sqltext.List(len(names), `?`, `, `)
	var args []any
	for range 2 {
		for name := range names {
			args = append(args, name)
		}
	}
	// A table hidden from the account is not found here: its statement will fail on it.
	rows, err := attempt.Ask(ctx, t.conn, `SELECT table_name, engine FROM information_schema.tables
WHERE LOWER(engine) NOT IN (`+transactional+`) AND table_name IN (`+in+`) AND (table_schema = DATABASE() OR table_schema IN (`+in+`))`, args...)
	if err != nil || len(rows) == 0 {
		return err
	}
	return fmt.Errorf("%w: it cannot be tried: the table %s has no transactions (%s), and a rollback would not undo what it does there", ErrInvalid, attempt.Text(rows[0][0]), attempt.Text(rows[0][1]))
}
