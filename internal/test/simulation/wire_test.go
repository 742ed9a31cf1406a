package simulation

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// message is a statement on its way to a server.
type message struct {
	by    *actor
	conn  *conn
	text  string
	args  []any
	reply chan reply
	// shown is the same for the same seed; empty until network.show.
	shown string
	sent  time.Time
	// stray marks a message without a waiting sender.
	stray bool
}

type reply struct {
	a   *answer
	err error
}

// network holds messages that may change data, until their fate is decided. Mere questions, and
// messages without a responsible caller (erasing after calls return), pass at once.
type network struct {
	mu       sync.Mutex
	inFlight []*message
	// free: nothing is held any more.
	free bool
	// passing means that time passes and the log answers the processes' background work. still
	// means that processes stand still and renew no leases.
	passing, still bool
	// sent counts what was held.
	sent int
	// names replace ids and texts in the history, so that the same seed gives the same history.
	names map[string]string
}

// show names the messages sent since its last call, once all actors rest: their order was random.
// Writes to the log come first, because they explain the others.
func (n *network) show() {
	for _, logs := range []bool{true, false} {
		for _, m := range n.inFlight {
			if m.shown == "" && (strings.HasPrefix(m.text, insertIntoLog) || strings.HasPrefix(m.text, insertWithin)) == logs {
				m.shown = m.show(n.label(m))
			}
		}
	}
}

// How an entry is written: by the log, or in a transaction of the application's.
const (
	insertIntoLog = "INSERT INTO transaction_log "
	insertWithin  = "INSERT INTO `shop`.transaction_log "
)

// label describes a message. A row of the log carries its text, after its id.
func (n *network) label(m *message) string {
	var about []string
	if strings.HasPrefix(m.text, insertWithin) { // whose values are in its text
		row := strings.Trim(aRow.FindString(m.text), "/* ")
		if id := anID.FindString(m.text); row != "" && n.names[id] == "" {
			n.names[id] = row
		}
		about = append(about, row)
	}
	for i, arg := range m.args {
		text, _ := arg.(string)
		name, known := n.names[text]
		if !known || text == "" {
			continue
		}
		if i > 1 && strings.HasPrefix(m.text, insertIntoLog) {
			if id, _ := m.args[i-2].(string); n.names[id] == "" {
				n.names[id] = name
			}
		}
		if !slices.Contains(about, name) {
			about = append(about, name)
		}
	}
	slices.Sort(about)
	return strings.Join(about, ", ")
}

type actorKey struct{}

// wire dials a server as a process with its home in a database.
type wire struct {
	n        *network
	process  *process
	server   *server
	database string
	// storage: it dials for the log.
	storage bool
}

func (w *wire) Connect(ctx context.Context) (c driver.Conn, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w.n.do(func() {
		// A process that cannot open the log ends, and is restarted until it can.
		if w.process.dead || w.server.down && !w.process.itself.free {
			err = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			return
		}
		made := &conn{n: w.n, process: w.process, s: w.server.connect(w.database), storage: w.storage}
		made.s.conn = made
		w.process.conns = append(slices.DeleteFunc(w.process.conns, func(c *conn) bool { return c.lost.Load() }), made)
		c = made
	})
	return c, err
}

func (w *wire) Driver() driver.Driver { return mysql.MySQLDriver{} }

// conn is a connection as go-sql-driver makes it without interpolateParams.
type conn struct {
	n       *network
	process *process
	s       *session
	by      *actor
	storage bool // it is the log's own
	lost    atomic.Bool
}

var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
)

// do runs f with exclusive access to the servers.
func (n *network) do(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// begin is how a transaction of the driver's begins.
const begin = "START TRANSACTION"

// atReadCommitted precedes such a transaction, if the driver is asked to use that level.
const atReadCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

// held reports whether a message waits for its fate: writes, ends of transactions, and lookups of
// receipts do.
func held(to *server, text string) bool {
	if to.isLog {
		verb, rest, _ := strings.Cut(text, " ")
		if strings.HasPrefix(text, "PREPARE UPDATE shop.effect ") {
			return true
		}
		return !strings.Contains(text, " bed_attempt ") && verb != "PREPARE" && verb != "SHOW" && verb != "SET" && verb != "CREATE" && !strings.HasPrefix(rest, "data_source FROM")
	}
	if prepared, ok := strings.CutPrefix(text, "PREPARE "); ok {
		return strings.Contains(prepared, "shop.effect")
	}
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "SELECT":
		return strings.HasSuffix(rest, "bed_receipt WHERE id = ?")
	case "START":
		return text == begin // and not the question whether writes are taken
	case "SHOW", "CREATE":
		return false
	case "SET":
		return text != atReadCommitted
	}
	return true
}

func isRenewal(text string) bool {
	return strings.HasPrefix(text, "UPDATE transaction_log") && strings.Contains(text, " SET next_try_time = ")
}

func (c *conn) send(ctx context.Context, text string, args []any) (*answer, error) {
	if c.lost.Load() {
		return nil, driver.ErrBadConn
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if a, ok := ctx.Value(actorKey{}).(*actor); ok {
		c.by = a
	} else if c.storage {
		c.by = c.process.itself
	}
	m := &message{by: c.by, conn: c, text: text, args: args, reply: make(chan reply, 1), sent: time.Now()}
	c.n.do(func() {
		switch {
		case c.process.dead || c.lost.Load():
			m.breaks()
		case c.n.passing && c.n.still && isRenewal(text):
			m.breaks()
		case c.n.passing && c.s.server.isLog && (m.by == c.process.itself || isRenewal(text)):
			m.arrives()
		case c.n.free || m.by == nil || m.by.free || !held(c.s.server, text):
			m.arrives()
		default:
			c.n.sent++
			c.n.inFlight = append(c.n.inFlight, m)
		}
	})
	select {
	case r := <-m.reply:
		return r.a, r.err
	case <-ctx.Done():
		c.n.do(func() { m.stray = true })
		c.lost.Store(true)
		return nil, ctx.Err()
	}
}

// tell answers; the first answer counts.
func (m *message) tell(a *answer, err error) {
	select {
	case m.reply <- reply{a, err}:
	default:
	}
}

// arrives: it is carried out and answered.
func (m *message) arrives() { m.tell(m.run()) }

func (m *message) run() (*answer, error) {
	s := m.conn.s
	if !strings.HasPrefix(m.text, "PREPARE ") {
		return s.run(m.text, m.args)
	}
	if strings.HasPrefix(m.text, "PREPARE bed_write_") {
		return nil, errNotSupported // what is prepared by name is a matter of speed
	}
	if s.doomed {
		s.rollback()
		return nil, errDeadlock
	}
	return &answer{}, nil
}

// breaks: the connection does, and its session ends.
func (m *message) breaks() {
	m.conn.breaks()
	m.tell(nil, mysql.ErrInvalidConn)
}

func (c *conn) breaks() {
	c.s.rollback()
	c.lost.Store(true)
}

func (c *conn) IsValid() bool { return !c.lost.Load() }

func (c *conn) Ping(ctx context.Context) error {
	if c.lost.Load() {
		return driver.ErrBadConn
	}
	return ctx.Err()
}

func (c *conn) Close() error {
	c.lost.Store(true)
	c.n.do(func() {
		for _, m := range c.n.inFlight {
			if m.conn == c {
				return // the session ends behind it
			}
		}
		c.s.rollback()
	})
	return nil
}

func (c *conn) Begin() (driver.Tx, error) { return c.BeginTx(context.Background(), driver.TxOptions{}) }

func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if opts.Isolation == driver.IsolationLevel(sql.LevelReadCommitted) {
		if _, err := c.send(ctx, atReadCommitted, nil); err != nil {
			return nil, err
		}
	}
	if _, err := c.send(ctx, begin, nil); err != nil {
		return nil, err
	}
	return tx{c}, nil
}

type tx struct{ c *conn }

func (t tx) Commit() error   { return t.end("COMMIT") }
func (t tx) Rollback() error { return t.end("ROLLBACK") }

func (t tx) end(text string) error {
	_, err := t.c.send(context.Background(), text, nil)
	if errors.Is(err, driver.ErrBadConn) {
		return mysql.ErrInvalidConn
	}
	return err
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if len(args) > 0 {
		return nil, driver.ErrSkip
	}
	a, err := c.send(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(a.affected), nil
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if len(args) > 0 {
		return nil, driver.ErrSkip
	}
	return query1(c.send(ctx, query, nil))
}

func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if _, err := c.send(ctx, "PREPARE "+query, nil); err != nil {
		return nil, err
	}
	return &stmt{c, query}, nil
}

type stmt struct {
	c     *conn
	query string
}

func (s *stmt) Close() error                               { return nil }
func (s *stmt) NumInput() int                              { return strings.Count(s.query, "?") }
func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (s *stmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	a, err := s.c.send(ctx, s.query, values(args))
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(a.affected), nil
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return query1(s.c.send(ctx, s.query, values(args)))
}

func values(args []driver.NamedValue) (vs []any) {
	for _, a := range args {
		vs = append(vs, a.Value)
	}
	return vs
}

type rows struct{ a *answer }

func query1(a *answer, err error) (driver.Rows, error) {
	if err != nil {
		return nil, err
	}
	return &rows{a}, nil
}

func (r *rows) Columns() []string { return r.a.columns }
func (r *rows) Close() error      { return nil }

func (r *rows) Next(dest []driver.Value) error {
	if len(r.a.rows) == 0 {
		return io.EOF
	}
	for i, v := range r.a.rows[0] {
		dest[i] = v
	}
	r.a.rows = r.a.rows[1:]
	return nil
}

// actor is a writer, a round of a job, or the background work of a process.
type actor struct {
	name    string
	process *process
	done    chan struct{}
	since   time.Time
	// free means that its messages are not held any more.
	free bool
}

// start runs f as an actor.
func start(name string, p *process, f func(context.Context)) *actor {
	a := &actor{name: name, process: p, done: make(chan struct{}), since: time.Now()}
	go func() {
		defer close(a.done)
		f(context.WithValue(context.Background(), actorKey{}, a))
	}()
	return a
}

func (a *actor) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}
