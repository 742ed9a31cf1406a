package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/listener/delivery"
)

// The functions of this file drive a connection through the newest of the
// optional interfaces it has, falling back as database/sql does.

// Exec runs one statement. before reports that an error arose before the
// statement itself was sent (its prepare failed, or ctx had already ended).
func Exec(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue) (res driver.Result, before bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, true, err
	}
	switch c := delivery.Bare(conn).(type) {
	case driver.ExecerContext:
		res, err = c.ExecContext(ctx, query, args)
		if !errors.Is(err, driver.ErrSkip) {
			return res, false, err
		}
	case driver.Execer: //nolint:staticcheck // deprecated, but drivers have it
		if vals, verr := plain(args); verr == nil {
			res, err = c.Exec(query, vals)
			if !errors.Is(err, driver.ErrSkip) {
				return res, false, err
			}
		}
	}
	return execPrepared(ctx, conn, query, args)
}

// execPrepared is Exec for a statement that is to be prepared.
func execPrepared(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue) (res driver.Result, before bool, err error) {
	st, err := Prepare(ctx, conn, query)
	if err != nil {
		return nil, true, err
	}
	defer func() { _ = st.Close() }()
	if err := CheckCount(st, args); err != nil {
		return nil, true, err
	}
	res, err = StmtExec(ctx, st, args)
	return res, false, err
}

// execCall is Exec for a call, sent as the application sent it.
func execCall(ctx context.Context, conn driver.Conn, c *delivery.Call) (res driver.Result, before bool, err error) {
	if !c.Prepared {
		return Exec(ctx, conn, c.SQL, c.Args)
	}
	if err := ctx.Err(); err != nil {
		return nil, true, err
	}
	if c.Stmt == nil {
		return execPrepared(ctx, conn, c.SQL, c.Args)
	}
	res, err = StmtExec(ctx, c.Stmt, c.Args)
	return res, false, err
}

// Query runs one statement that returns rows. before is as for Exec.
func Query(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue) (rows driver.Rows, before bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, true, err
	}
	switch c := delivery.Bare(conn).(type) {
	case driver.QueryerContext:
		rows, err = c.QueryContext(ctx, query, args)
		if !errors.Is(err, driver.ErrSkip) {
			return rows, false, err
		}
	case driver.Queryer: //nolint:staticcheck // deprecated, but drivers have it
		if vals, verr := plain(args); verr == nil {
			rows, err = c.Query(query, vals)
			if !errors.Is(err, driver.ErrSkip) {
				return rows, false, err
			}
		}
	}
	return queryPrepared(ctx, conn, query, args)
}

// queryCall is Query for a call, sent as the application sent it.
func queryCall(ctx context.Context, conn driver.Conn, c *delivery.Call) (rows driver.Rows, before bool, err error) {
	if !c.Prepared {
		return Query(ctx, conn, c.SQL, c.Args)
	}
	if err := ctx.Err(); err != nil {
		return nil, true, err
	}
	if c.Stmt == nil {
		return queryPrepared(ctx, conn, c.SQL, c.Args)
	}
	rows, err = StmtQuery(ctx, c.Stmt, c.Args)
	return rows, false, err
}

// queryPrepared is Query for a statement that is to be prepared.
func queryPrepared(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue) (rows driver.Rows, before bool, err error) {
	st, err := Prepare(ctx, conn, query)
	if err != nil {
		return nil, true, err
	}
	if err := CheckCount(st, args); err != nil {
		_ = st.Close()
		return nil, true, err
	}
	rows, err = StmtQuery(ctx, st, args)
	if err != nil {
		_ = st.Close()
		return nil, false, err
	}
	return &stmtRows{Rows: rows, st: st}, false, nil
}

// stmtRows closes the statement that was prepared for one query with its rows.
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

// argumentsError is a mistake in the arguments or options that database/sql
// would have found before the driver saw them. The texts are its own.
func argumentsError(text string) error { return delivery.Certain(errors.New(text), delivery.Refused) }

// CheckCount compares the number of arguments with what st wants. Drivers are
// promised that they need not do it.
func CheckCount(st driver.Stmt, args []driver.NamedValue) error {
	if n := st.NumInput(); n != -1 && n != len(args) {
		return argumentsError(fmt.Sprintf("sql: expected %d arguments, got %d", n, len(args)))
	}
	return nil
}

// Prepare prepares a statement.
func Prepare(ctx context.Context, conn driver.Conn, query string) (driver.Stmt, error) {
	conn = delivery.Bare(conn)
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

// StmtExec runs a prepared statement.
func StmtExec(ctx context.Context, st driver.Stmt, args []driver.NamedValue) (driver.Result, error) {
	if s, ok := st.(driver.StmtExecContext); ok {
		return s.ExecContext(ctx, args)
	}
	vals, err := plain(args)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return st.Exec(vals) //nolint:staticcheck // the only one that this driver has
}

// StmtQuery runs a prepared statement that returns rows.
func StmtQuery(ctx context.Context, st driver.Stmt, args []driver.NamedValue) (driver.Rows, error) {
	if s, ok := st.(driver.StmtQueryContext); ok {
		return s.QueryContext(ctx, args)
	}
	vals, err := plain(args)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return st.Query(vals) //nolint:staticcheck // the only one that this driver has
}

// BeginTx begins a local transaction; options are never dropped.
func BeginTx(ctx context.Context, conn driver.Conn, opts driver.TxOptions) (driver.Tx, error) {
	conn = delivery.Bare(conn)
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

// Ping asks the connection whether it is alive. Without a Pinger a
// connection counts as alive while it calls itself valid.
func Ping(ctx context.Context, conn driver.Conn) error {
	conn = delivery.Bare(conn)
	if v, ok := conn.(driver.Validator); ok && !v.IsValid() {
		return driver.ErrBadConn
	}
	if p, ok := conn.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

// plain strips the names for the interfaces that know none.
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
