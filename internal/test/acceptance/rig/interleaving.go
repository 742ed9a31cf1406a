package rig

import (
	"context"
	"database/sql/driver"
	"io"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
)

// Verdict is the fate of a held message.
type Verdict int

const (
	Arrives      Verdict = iota
	LostBefore           // it never arrives
	AnswerIsLost         // it is carried out
)

// Actor is a writer or a round of a job. It stops at each message that may change the target, until
// that message's fate is decided.
type Actor struct {
	name string
	// held carries the actor's current message, and done its end.
	held     chan string
	verdicts chan Verdict
	done     chan struct{}
	// At is the current message; empty after the end. since is the start: the actor may have
	// claimed its units then, and stalled ever since.
	At    string
	Since time.Duration
}

type actorKey struct{}

// start runs f as an actor until its first message.
func StartActor(name string, f func(ctx context.Context)) *Actor {
	a := &Actor{name: name, held: make(chan string), verdicts: make(chan Verdict), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		f(context.WithValue(context.Background(), actorKey{}, a))
	}()
	a.await()
	return a
}

// await waits until the actor stands at its next message or has ended.
func (a *Actor) await() {
	select {
	case a.At = <-a.held:
	case <-a.done:
		a.At = ""
	}
}

func (a *Actor) Step(v Verdict) {
	a.verdicts <- v
	a.await()
}

// hold is called by the actor itself.
func hold(ctx context.Context, message string) Verdict {
	a, ok := ctx.Value(actorKey{}).(*Actor)
	if !ok {
		return Arrives // erasing after calls returned
	}
	a.held <- message
	return <-a.verdicts
}

// HeldConnector dials SQLite through connections that stand at their messages.
type HeldConnector struct{ driver.Connector }

func (c HeldConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &heldConn{Conn: conn}, nil
}

type heldConn struct {
	driver.Conn
	inTx bool
}

// errLost is not an answer: SQLite's dialect takes it for a lost one.
var errLost = io.ErrUnexpectedEOF

func (c *heldConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if hold(ctx, "BEGIN") != Arrives {
		return nil, errLost
	}
	tx, err := attempt.BeginTx(ctx, c.Conn, opts)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return &heldTx{c: c, ctx: ctx, inner: tx}, nil
}

func (c *heldConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	v := Arrives
	if !c.inTx && strings.HasPrefix(query, "INSERT INTO bed_receipt") {
		v = hold(ctx, "VOID")
	}
	if v == LostBefore {
		return nil, errLost
	}
	res, _, err := attempt.Exec(ctx, c.Conn, query, args)
	if v == AnswerIsLost {
		return nil, errLost
	}
	return res, err
}

func (c *heldConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, _, err := attempt.Query(ctx, c.Conn, query, args)
	return rows, err
}

func (c *heldConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return attempt.Prepare(ctx, c.Conn, query)
}

type heldTx struct {
	c     *heldConn
	ctx   context.Context
	inner driver.Tx
}

func (t *heldTx) Commit() error {
	switch hold(t.ctx, "COMMIT") {
	case LostBefore:
		_ = t.Rollback()
		return errLost
	case AnswerIsLost:
		t.c.inTx = false
		if err := t.inner.Commit(); err != nil {
			_ = t.inner.Rollback()
		}
		return errLost
	default:
		t.c.inTx = false
		return t.inner.Commit()
	}
}

func (t *heldTx) Rollback() error {
	t.c.inTx = false
	return t.inner.Rollback()
}
