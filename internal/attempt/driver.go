package attempt

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// The functions of this file drive a connection through the newest of the
// optional interfaces it has, falling back as database/sql does.

// Reply is a driver's reply: the result of an Exec, or the rows of a Query.
type Reply struct {
	Result driver.Result
	Rows   driver.Rows
}

// One runs a single statement as one attempt, in the session's autocommit. A statement with a row
// requirement runs in a local transaction. One reads all rows of a statement that returns rows.
// inDoubt means that an earlier attempt of the same statement may have been applied.
func One(ctx context.Context, d *dialect.Dialect, conn driver.Conn, c dialect.Call, rows, inDoubt bool) Outcome {
	if c.Required.Given() {
		return together(ctx, d, conn, []dialect.Call{c}, rows, inDoubt)
	}
	return Inside(ctx, d, conn, c, rows, inDoubt)
}

// Inside is One inside the open local transaction on conn. The caller must not commit it after an
// error: a statement that misses its row requirement has run all the same.
func Inside(ctx context.Context, d *dialect.Dialect, conn driver.Conn, c dialect.Call, rows, inDoubt bool) Outcome {
	byQuery := rows || c.Required.Given() && d.Flavor == sqltext.MySQL && returns(c.SQL)
	r, before, err := Send(ctx, conn, &c, byQuery)
	if err != nil {
		out := Failed(d, err, before).assume(inDoubt)
		out.Voided = errors.Is(out.Err, dialect.ErrVoided) // a Peer says so
		return out
	}
	out := Outcome{Result: r.Result}
	if byQuery {
		if out.Rows, err = BufferWrite(d, r.Rows); err != nil {
			return Failed(d, err, false).assume(inDoubt)
		}
	}
	if !c.Required.Given() {
		return out
	}
	if err := Check(c.Required, out.Result, out.Rows); err != nil {
		return Failed(d, err, false)
	}
	if byQuery && !rows {
		out.Result, out.Rows = driver.RowsAffected(len(out.Rows.rows)+out.Rows.dropped), nil
	}
	return out
}

// Check returns an error if a statement did not meet its row requirement. It counts by the result
// or, after a Query, by the returned rows.
func Check(r entry.Requirement, res driver.Result, rows *Rows) error {
	if !r.Given() {
		return nil
	}
	got := int64(-1)
	switch {
	case rows != nil:
		if len(rows.cols) > 0 && (rows.err == nil || rows.dropped > 0) {
			got = int64(len(rows.rows) + rows.dropped)
		}
	case res != nil:
		if n, err := res.RowsAffected(); err == nil {
			got = n
		}
	}
	if got >= 0 && r.Met(got) {
		return nil
	}
	return dialect.Unmet(r, got)
}

// returns reports whether text returns rows. For such a statement, MySQL's driver reports 0
// changed rows.
func returns(text string) bool {
	if !strings.Contains(strings.ToUpper(text), "RETURNING") {
		return false
	}
	for t := range sqltext.Tokens(sqltext.MySQL, 0, text) {
		if t.Is("RETURNING") {
			return true
		}
	}
	return false
}

// Send runs a call as the application sent it, with rows by Query. before reports an error from
// before the statement itself was sent: its prepare failed, or ctx had already ended.
func Send(ctx context.Context, conn driver.Conn, c *dialect.Call, rows bool) (r Reply, before bool, err error) {
	if err := ctx.Err(); err != nil {
		return r, true, err
	}
	switch {
	case c.Stmt != nil:
		r, err = SendStmt(ctx, c.Stmt, c.Args, rows)
		return r, false, err
	case !c.Prepared:
		if r, err = SendText(ctx, Bare(conn), c, rows); !errors.Is(err, driver.ErrSkip) {
			return r, false, err
		}
	}
	st, err := Prepare(ctx, conn, c.SQL)
	if err != nil {
		return Reply{}, true, err
	}
	if err := CheckCount(st, c.Args); err != nil {
		_ = st.Close()
		return Reply{}, true, err
	}
	r, err = SendStmt(ctx, st, c.Args, rows)
	if !rows || err != nil {
		_ = st.Close()
		return r, false, err
	}
	return Reply{Rows: &stmtRows{Rows: r.Rows, st: st}}, false, nil
}

// SendText runs a call unprepared on a bare connection. It returns driver.ErrSkip if the driver
// cannot.
func SendText(ctx context.Context, conn driver.Conn, c *dialect.Call, rows bool) (r Reply, err error) {
	if rows {
		switch conn := conn.(type) {
		case driver.QueryerContext:
			r.Rows, err = conn.QueryContext(ctx, c.SQL, c.Args)
			return r, err
		case driver.Queryer: //nolint:staticcheck // deprecated, but drivers have it
			if vals, verr := plain(c.Args); verr == nil && ctx.Err() == nil {
				r.Rows, err = conn.Query(c.SQL, vals)
				return r, err
			}
		}
		return r, driver.ErrSkip
	}
	switch conn := conn.(type) {
	case driver.ExecerContext:
		r.Result, err = conn.ExecContext(ctx, c.SQL, c.Args)
		return r, err
	case driver.Execer: //nolint:staticcheck // deprecated, but drivers have it
		if vals, verr := plain(c.Args); verr == nil && ctx.Err() == nil {
			r.Result, err = conn.Exec(c.SQL, vals)
			return r, err
		}
	}
	return r, driver.ErrSkip
}

// SendStmt runs a prepared statement, with rows by Query.
func SendStmt(ctx context.Context, st driver.Stmt, args []driver.NamedValue, rows bool) (r Reply, err error) {
	if s, ok := st.(driver.StmtQueryContext); ok && rows {
		r.Rows, err = s.QueryContext(ctx, args)
		return r, err
	}
	if s, ok := st.(driver.StmtExecContext); ok && !rows {
		r.Result, err = s.ExecContext(ctx, args)
		return r, err
	}
	vals, err := plain(args)
	if err != nil {
		return r, err
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if rows {
		r.Rows, err = st.Query(vals) //nolint:staticcheck // the only one that this driver has
	} else {
		r.Result, err = st.Exec(vals) //nolint:staticcheck // the only one that this driver has
	}
	return r, err
}

// Exec is Send with Exec for a text.
func Exec(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue) (res driver.Result, before bool, err error) {
	r, before, err := Send(ctx, conn, &dialect.Call{SQL: query, Args: args}, false)
	return r.Result, before, err
}

// Query is Send with Query for a text.
func Query(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue) (rows driver.Rows, before bool, err error) {
	r, before, err := Send(ctx, conn, &dialect.Call{SQL: query, Args: args}, true)
	return r.Rows, before, err
}

// Ask runs one of our own queries and returns its rows.
func Ask(ctx context.Context, conn driver.Conn, query string, args ...any) ([][]driver.Value, error) {
	c := call(query, args...)
	r, _, err := Send(ctx, conn, &c, true)
	if err != nil {
		return nil, err
	}
	rows, err := read(r.Rows, math.MaxInt)
	closed := r.Rows.Close()
	if err == io.EOF { //nolint:errorlint // a wrapped one is the end of a connection
		err = closed
	}
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Number reads a number from a driver. An unsigned number that does not fit wraps around, as the
// drivers' own ids do.
func Number(v driver.Value) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	s := Text(v)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	n, _ := strconv.ParseUint(s, 10, 64)
	return int64(n)
}

// Text reads a text from a driver; NULL is empty.
func Text(v driver.Value) string {
	switch s := v.(type) {
	case nil:
		return ""
	case []byte:
		return string(s)
	case string:
		return s
	default:
		return fmt.Sprint(v)
	}
}

// Texts reads the rows of Ask as texts.
func Texts(rows [][]driver.Value) [][]string {
	texts := make([][]string, len(rows))
	for i, row := range rows {
		for _, v := range row {
			texts[i] = append(texts[i], Text(v))
		}
	}
	return texts
}

// first returns the first text of rows; empty without rows.
func first(rows [][]driver.Value) string {
	if len(rows) == 0 {
		return ""
	}
	return Text(rows[0][0])
}

// read reads rows until they end, and returns the error that ends them. It stops without an error
// beyond limit bytes.
func read(rows driver.Rows, limit int) (all [][]driver.Value, err error) {
	const perValue = 40 // of an interface, its value and the slice
	dest := make([]driver.Value, len(rows.Columns()))
	for size := 0; size <= limit; {
		if err = rows.Next(dest); err != nil {
			return all, err
		}
		row := make([]driver.Value, len(dest))
		for i, v := range dest {
			size += perValue
			switch raw := v.(type) {
			case string:
				size += len(raw)
			case []byte:
				size += len(raw)
				v = bytes.Clone(raw) // a driver may reuse its buffer for the next row
			}
			row[i] = v
		}
		all = append(all, row)
	}
	return all, nil
}

// call makes a Call for one of our own statements.
func call(text string, args ...any) dialect.Call {
	return dialect.Call{SQL: text, Args: Numbered(args)}
}

// Numbered makes parameters of values, in their order.
func Numbered[V any](values []V) []driver.NamedValue {
	args := make([]driver.NamedValue, len(values))
	for i, v := range values {
		args[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return args
}

// stmtRows closes its rows and then the statement prepared for that one query.
type stmtRows struct {
	driver.Rows
	st driver.Stmt
}

func (r *stmtRows) Close() error {
	err := r.Rows.Close()
	if cerr := r.st.Close(); err == nil {
		err = cerr
	}
	return err
}

// argumentsError is a mistake in the arguments or options. database/sql would have found it before
// the driver saw them. The texts come from database/sql.
type argumentsError string

func (e argumentsError) Error() string { return string(e) }

// Certainly returns Refused: nothing was run, and nothing will be.
func (argumentsError) Certainly() dialect.Class { return dialect.Refused }

// CheckCount compares the number of arguments with the number that st takes. database/sql promises
// this check to drivers.
func CheckCount(st driver.Stmt, args []driver.NamedValue) error {
	if n := st.NumInput(); n != -1 && n != len(args) {
		return argumentsError(fmt.Sprintf("sql: expected %d arguments, got %d", n, len(args)))
	}
	return nil
}

// Prepare prepares a statement.
func Prepare(ctx context.Context, conn driver.Conn, query string) (driver.Stmt, error) {
	conn = Bare(conn)
	if c, ok := conn.(driver.ConnPrepareContext); ok {
		return c.PrepareContext(ctx, query)
	}
	st, err := conn.Prepare(query)
	if err == nil && ctx.Err() != nil {
		_ = st.Close()
		return nil, ctx.Err()
	}
	return st, err
}

// BeginTx begins a local transaction; options are never dropped.
func BeginTx(ctx context.Context, conn driver.Conn, opts driver.TxOptions) (driver.Tx, error) {
	conn = Bare(conn)
	if c, ok := conn.(driver.ConnBeginTx); ok {
		return c.BeginTx(ctx, opts)
	}
	if opts.Isolation != 0 {
		return nil, argumentsError("sql: driver does not support non-default isolation level")
	}
	if opts.ReadOnly {
		return nil, argumentsError("sql: driver does not support read-only transactions")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tx, err := conn.Begin() //nolint:staticcheck // the only one that this driver has
	if err == nil && ctx.Err() != nil {
		if tx.Rollback() != nil {
			_ = conn.Close()
		}
		return nil, ctx.Err()
	}
	return tx, err
}

// CommitTx commits tx, the open local transaction on conn, within ctx. CommitFailed classifies its
// error.
func CommitTx(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx) error {
	if d.Flavor == sqltext.MySQL {
		if err := ctx.Err(); err != nil {
			return NotSent(err, dialect.Unknown)
		}
		return end(ctx, conn, "COMMIT", tx.Commit)
	}
	return within(ctx, d, conn, tx.Commit)
}

// within runs a method of driver.Tx within ctx, although the method takes no context.
func within(ctx context.Context, d *dialect.Dialect, conn driver.Conn, f func() error) error {
	if d.Interrupt == nil || ctx.Done() == nil {
		return f()
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		d.Interrupt(Bare(conn))
	})
	err := f()
	if !stop() {
		<-interrupted
		_ = conn.Close()
	}
	return err
}

// Ping asks the connection whether it is alive. Without a Pinger a
// connection counts as alive while it calls itself valid.
func Ping(ctx context.Context, conn driver.Conn) error {
	conn = Bare(conn)
	if v, ok := conn.(driver.Validator); ok && !v.IsValid() {
		return driver.ErrBadConn
	}
	if p, ok := conn.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

// plain strips the names, for interfaces without names.
func plain(args []driver.NamedValue) ([]driver.Value, error) {
	vals := make([]driver.Value, len(args))
	for i := range args {
		if args[i].Name != "" {
			return nil, argumentsError("sql: driver does not support the use of Named Parameters")
		}
		vals[i] = args[i].Value
	}
	return vals, nil
}

// Session is a connection together with its dialect's memory of it. The functions of this package
// accept one in place of a driver.Conn, and use the connection inside. Like the connection, it
// belongs to one goroutine at a time.
type Session struct {
	driver.Conn
	// Memory is the dialect's own; nil at first.
	Memory any
	// Facts come from its dial.
	Facts dialect.Facts
	// Adapted means that its session was changed for one attempt: its pool drops it after that.
	Adapted bool

	closed bool
}

// Close closes the connection once, however often it is called.
func (s *Session) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	return s.Conn.Close()
}

// Bare returns the driver's own connection.
func Bare(conn driver.Conn) driver.Conn {
	if s, ok := conn.(*Session); ok {
		return s.Conn
	}
	return conn
}

// rollbackTimeout bounds a ROLLBACK after its context has ended.
const rollbackTimeout = time.Second

// CommitFailed classifies the error of a COMMIT. An answer means that nothing was committed;
// without an answer the outcome is unknown. Either way the transaction may still be open (Galera's
// 1047), and the next BEGIN would commit it. CommitFailed therefore closes the connection and sets
// ConnLost, unless the protocol shows that no transaction is open (Idle).
//
// SQLite runs in this process, and closing the connection would lose a database in memory. There
// the transaction is rolled back.
func CommitFailed(ctx context.Context, d *dialect.Dialect, conn driver.Conn, err error) Outcome {
	out := Failed(d, err, false)
	if d.Flavor == sqltext.SQLite {
		out.ConnLost = !RolledBack(d, Rollback(context.WithoutCancel(ctx), d, conn, nil))
		return out
	}
	if goesOn(d, conn, out) {
		return out
	}
	_ = conn.Close()
	out.ConnLost = true
	return out
}

// goesOn reports whether conn has no open transaction after a COMMIT was answered with out's
// error.
func goesOn(d *dialect.Dialect, conn driver.Conn, out Outcome) bool {
	return d.Idle != nil && out.Class.Answered() && !out.ConnLost && d.Idle(conn)
}

// Rollback rolls back tx, the open local transaction on conn. If tx is nil, it rolls back a
// transaction begun by a statement. It closes conn unless RolledBack is true of the error.
func Rollback(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
	}
	var err error
	switch {
	case tx == nil:
		_, _, err = Exec(ctx, conn, "ROLLBACK", nil)
	case d.Flavor == sqltext.MySQL:
		err = end(ctx, conn, "ROLLBACK", tx.Rollback)
	default:
		err = within(ctx, d, conn, tx.Rollback)
	}
	if !RolledBack(d, err) {
		_ = conn.Close()
	}
	return err
}

// RolledBack reports whether a ROLLBACK that returned err left no transaction open. SQLite returns
// an error after it has rolled back on its own.
func RolledBack(d *dialect.Dialect, err error) bool {
	return err == nil || d.Flavor == sqltext.SQLite && strings.Contains(err.Error(), "no transaction is active")
}

// end ends a transaction in MySQL by its text, because driver.Tx takes no context and would go on
// waiting for the answer after the end of ctx. The other databases need no such thing: for
// PostgreSQL see within, and SQLite always answers.
func end(ctx context.Context, conn driver.Conn, text string, plain func() error) error {
	if c, ok := Bare(conn).(driver.ExecerContext); ok && ctx.Done() != nil {
		if _, err := c.ExecContext(ctx, text, nil); !errors.Is(err, driver.ErrSkip) {
			return err
		}
	}
	return plain()
}

// rolledBack rolls back the transaction that an outcome before COMMIT left open.
func rolledBack(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx, o Outcome) Outcome {
	if !RolledBack(d, Rollback(ctx, d, conn, tx)) {
		o.ConnLost = true
	}
	return o.Uncommitted()
}

// Setting returns the single value of query.
func Setting(ctx context.Context, conn driver.Conn, query string) (value string, err error) {
	rows, err := Ask(ctx, conn, query)
	if err != nil {
		return "", err
	}
	if len(rows) != 1 || len(rows[0]) != 1 || rows[0][0] == nil {
		return "", fmt.Errorf("%s: no value", query)
	}
	return Text(rows[0][0]), nil
}
