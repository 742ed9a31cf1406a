package rig

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

// Steps counts a program's calls to its databases. The program can be killed before and after each
// call: these points cover all states that a crash can leave in the databases.
type Steps struct {
	Mu sync.Mutex
	// counting: steps are counted; the program's preparations are not.
	counting bool
	// die is the step of the process's suicide; 0 for never.
	die   int
	names []string
	// lose: the answer to the first commit on A is still to be lost.
	lose bool
	// told is the caller's knowledge so far; got and again are responses.
	told, Got, Again string
	// breaks, if not nil, chooses the breakage of a call.
	Breaks func(name string) Breakage
}

// Breakage replaces the outcome of a call, unless it has no error.
type Breakage struct {
	Err error
	// made: the call is made, and its answer lost.
	Made bool
	// alive: the connection outlives it.
	Alive bool
}

// breakage returns the breakage at name.
func (s *Steps) breakage(name string) Breakage {
	if s.Breaks == nil {
		return Breakage{}
	}
	return s.Breaks(name)
}

// at is one step. The lock is held while the process dies, so that no other
// goroutine takes another step.
func (s *Steps) at(name string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.counting {
		return
	}
	s.names = append(s.names, name)
	if len(s.names) == s.die {
		s.report()
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// lost reports whether the answer to name is to be lost.
func (s *Steps) lost(name string) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.lose || !strings.HasPrefix(name, "A ") || !strings.Contains(name, "COMMIT") {
		return false
	}
	s.lose = false
	return true
}

// CrashConnector puts steps around the calls of a bare driver's connections.
type CrashConnector struct {
	driver.Connector
	Steps *Steps
	Where string
}

func (c *CrashConnector) Connect(ctx context.Context) (driver.Conn, error) {
	if b := c.Steps.breakage(c.Where + " Connect"); b.Err != nil {
		return nil, b.Err
	}
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &crashConn{Conn: inner, c: c, open: map[*crashStmt]bool{}}, nil
}

func (c *CrashConnector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

type crashConn struct {
	driver.Conn
	c    *CrashConnector
	dead bool
	// inTx is set in a local transaction, and adds once that has added an entry.
	inTx, adds bool
	// erases reports an open transaction that erases receipts.
	erases bool
	// open are its statements.
	open map[*crashStmt]bool
	// session is Conn with the dialect's memory of it.
	session *attempt.Session
}

// inside returns the driver's connection in the dialect's form, with the memory of conn if it has
// one.
func (c *crashConn) inside(conn driver.Conn) driver.Conn {
	if _, ok := conn.(*attempt.Session); !ok {
		return c.Conn
	}
	if c.session == nil {
		c.session = &attempt.Session{Conn: c.Conn}
	}
	return c.session
}

// around makes a step before and after a call.
func around[T any](c *crashConn, what string, call func() (T, error)) (T, error) {
	name := c.c.Where + " " + what
	if c.inTx && c.c.Where == "log" {
		c.adds = c.adds || strings.HasPrefix(what, "INSERT INTO transaction_log")
		switch {
		case what != "COMMIT":
			name = "log in a transaction " + what
		case c.adds: // others remove entries
			name = "log COMMIT of an entry"
		}
	}
	if c.dead {
		var none T
		return none, driver.ErrBadConn
	}
	c.c.Steps.at("before " + name)
	b := c.breakage(what)
	if b.Err != nil && !b.Made {
		c.broke(b)
		var none T
		return none, b.Err
	}
	v, err := call()
	if err == driver.ErrSkip {
		return v, err
	}
	if b.Err != nil {
		if rows, ok := any(v).(driver.Rows); ok {
			_, _ = attempt.BufferWrite(new(dialect.Dialect), rows) // SQLite is done with the last one
		}
		c.broke(b)
		return v, b.Err
	}
	c.c.Steps.at("after " + name)
	if err == nil && c.c.Steps.lost(name) {
		c.broke(Breakage{})
		var none T
		return none, io.ErrUnexpectedEOF
	}
	return v, err
}

// breakage returns the breakage of a call. Erasing receipts never breaks, because no one waits for
// it; nor does any step that MySQL does not do in one round trip.
func (c *crashConn) breakage(what string) Breakage {
	if testdb.MySQLPath() && strings.HasSuffix(what, " in one") {
		return Breakage{}
	}
	erases := c.erases
	c.erases = (erases || strings.HasPrefix(what, "DELETE FROM bed_receipt") || strings.HasPrefix(what, "/*M! SET STATEMENT")) && what != "COMMIT"
	if erases || c.erases {
		return Breakage{}
	}
	return c.c.Steps.breakage(c.c.Where + " " + what)
}

func (c *crashConn) broke(b Breakage) {
	if b.Alive {
		return
	}
	c.dead = true
	for s := range c.open { // SQLite's are to be closed before it
		_ = s.Stmt.Close()
	}
	_ = c.Conn.Close()
}

// verb names a statement by its first words.
func verb(query string) string {
	n, spaces := 0, 0
	for ; n < len(query) && spaces < 3; n++ {
		if query[n] == ' ' || query[n] == '\n' {
			spaces++
		}
	}
	return query[:n]
}

func (c *crashConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return around(c, verb(query), func() (driver.Result, error) {
		res, _, err := attempt.Exec(ctx, c.Conn, query, args)
		return res, err
	})
}

func (c *crashConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return around(c, verb(query), func() (driver.Rows, error) {
		rows, _, err := attempt.Query(ctx, c.Conn, query, args)
		return rows, err
	})
}

func (c *crashConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if c.dead {
		return nil, driver.ErrBadConn
	}
	st, err := attempt.Prepare(ctx, c.Conn, query)
	if err != nil {
		return nil, err
	}
	s := &crashStmt{Stmt: st, c: c, query: query}
	c.open[s] = true
	return s, nil
}

func (c *crashConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if c.dead {
		return nil, driver.ErrBadConn
	}
	tx, err := attempt.BeginTx(ctx, c.Conn, opts)
	if err != nil {
		return nil, err
	}
	c.inTx, c.adds = true, false
	return &crashTx{Tx: tx, c: c}, nil
}

func (c *crashConn) CheckNamedValue(nv *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(nv)
	}
	return driver.ErrSkip
}

func (c *crashConn) Ping(ctx context.Context) error {
	if c.dead {
		return driver.ErrBadConn
	}
	return attempt.Ping(ctx, c.Conn)
}

func (c *crashConn) IsValid() bool { return !c.dead }

func (c *crashConn) Close() error {
	if c.dead {
		return nil
	}
	return c.Conn.Close()
}

type crashStmt struct {
	driver.Stmt
	c     *crashConn
	query string
}

func (s *crashStmt) Close() error {
	if s.c.dead {
		return nil
	}
	delete(s.c.open, s)
	return s.Stmt.Close()
}

func (s *crashStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return around(s.c, verb(s.query), func() (driver.Result, error) {
		r, err := attempt.SendStmt(ctx, s.Stmt, args, false)
		return r.Result, err
	})
}

func (s *crashStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return around(s.c, verb(s.query), func() (driver.Rows, error) {
		r, err := attempt.SendStmt(ctx, s.Stmt, args, true)
		return r.Rows, err
	})
}

func (s *crashStmt) CheckNamedValue(nv *driver.NamedValue) error {
	if n, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(nv)
	}
	return s.c.CheckNamedValue(nv)
}

type crashTx struct {
	driver.Tx
	c *crashConn
}

func (t *crashTx) Rollback() error {
	t.c.inTx = false
	if t.c.dead {
		return driver.ErrBadConn
	}
	return t.Tx.Rollback()
}

func (t *crashTx) Commit() error {
	defer func() { t.c.inTx = false }()
	_, err := around(t.c, "COMMIT", func() (struct{}, error) { return struct{}{}, t.Tx.Commit() })
	return err
}

// CrashTarget is a target with every step counted, including the dialect's own steps in one round
// trip.
func CrashTarget(t delivery.Target, s *Steps, where string) delivery.Target {
	c := &CrashConnector{Connector: t.Connector, Steps: s, Where: where}
	t.Connector = c
	d := *t.Dialect
	if atomic := d.Atomic; atomic != nil {
		d.Atomic = func(ctx context.Context, conn driver.Conn, calls []dialect.Call) (results []driver.Result, handled bool, err error) {
			cc := attempt.Bare(conn).(*crashConn)
			_, err = around(cc, "receipt, writes and COMMIT in one", func() (struct{}, error) {
				results, handled, err = atomic(ctx, cc.inside(conn), calls)
				if !handled {
					return struct{}{}, driver.ErrSkip
				}
				return struct{}{}, err
			})
			if errors.Is(err, driver.ErrSkip) {
				return nil, false, nil
			}
			return results, true, err
		}
	}
	if with := d.CommitWith; with != nil {
		d.CommitWith = func(ctx context.Context, conn driver.Conn, calls []dialect.Call) (handled bool, err error) {
			cc := attempt.Bare(conn).(*crashConn)
			_, err = around(cc, "receipt and COMMIT in one", func() (struct{}, error) {
				handled, err = with(ctx, cc.inside(conn), calls)
				if !handled {
					return struct{}{}, driver.ErrSkip
				}
				return struct{}{}, err
			})
			if errors.Is(err, driver.ErrSkip) {
				return false, nil
			}
			return true, err
		}
	}
	t.Dialect = &d
	return t
}

// CrashReport is the program's report in one line, at its end or just before it kills itself.
type CrashReport struct {
	// Told is what the caller got: "delivered", "pending" or "failed: …";
	// empty when it was killed before.
	Told string
	// Got is the client's response to a request, and Again the response to its repetition.
	Got, Again string
	// Steps are those that it made.
	Steps []string
}

// Begin starts to count steps.
func (s *Steps) Begin(die int, lose bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.names, s.die, s.lose, s.counting = nil, die, lose, true
}

// Say notes what the caller got.
func (s *Steps) Say(told string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.told = told
}

// End reports a program that was not killed.
func (s *Steps) End(told string) {
	s.Say(told)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.report()
	s.counting = false // what comes now is the log's closing
}

// report is called with mu held.
func (s *Steps) report() {
	line, _ := json.Marshal(CrashReport{Told: s.told, Steps: s.names, Got: s.Got, Again: s.Again})
	fmt.Fprintln(os.Stdout, string(line))
}

// Durable reports whether the program had written its entry, and attempted
// whether it had begun to.
func (r *CrashReport) Durable() bool {
	return r.made("after log INSERT INTO transaction_log") || r.made("after log COMMIT of an entry") || r.made("after home COMMIT") || r.made("after home receipt and COMMIT in one")
}

func (r *CrashReport) Attempted() bool {
	return r.made("before log INSERT INTO transaction_log") || r.made("before log COMMIT of an entry") || r.made("before home COMMIT") || r.made("before home receipt and COMMIT in one")
}

func (r *CrashReport) made(prefix string) bool {
	for _, s := range r.Steps {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}
