package acceptance

import (
	"context"
	"database/sql/driver"
	"io"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/attempt"
)

// verdict is the fate of a held message.
type verdict int

const (
	arrives      verdict = iota
	lostBefore           // it never arrives
	answerIsLost         // it is carried out
)

// actor is a writer or a round of a job. It stops at each message that may change the target, until
// that message's fate is decided.
type actor struct {
	name string
	// held carries the actor's current message, and done its end.
	held     chan string
	verdicts chan verdict
	done     chan struct{}
	// at is the current message; empty after the end. since is the start: the actor may have
	// claimed its units then, and stalled ever since.
	at    string
	since time.Duration
}

type actorKey struct{}

// start runs f as an actor until its first message.
func startActor(name string, f func(ctx context.Context)) *actor {
	a := &actor{name: name, held: make(chan string), verdicts: make(chan verdict), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		f(context.WithValue(context.Background(), actorKey{}, a))
	}()
	a.await()
	return a
}

// await waits until the actor stands at its next message or has ended.
func (a *actor) await() {
	select {
	case a.at = <-a.held:
	case <-a.done:
		a.at = ""
	}
}

func (a *actor) step(v verdict) {
	a.verdicts <- v
	a.await()
}

// hold is called by the actor itself.
func hold(ctx context.Context, message string) verdict {
	a, ok := ctx.Value(actorKey{}).(*actor)
	if !ok {
		return arrives // erasing after calls returned
	}
	a.held <- message
	return <-a.verdicts
}

// heldConnector dials SQLite through connections that stand at their messages.
type heldConnector struct{ driver.Connector }

func (c heldConnector) Connect(ctx context.Context) (driver.Conn, error) {
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
	if hold(ctx, "BEGIN") != arrives {
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
	v := arrives
	if !c.inTx && strings.HasPrefix(query, "INSERT INTO bed_receipt") {
		v = hold(ctx, "VOID")
	}
	if v == lostBefore {
		return nil, errLost
	}
	res, _, err := attempt.Exec(ctx, c.Conn, query, args)
	if v == answerIsLost {
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
	case lostBefore:
		_ = t.Rollback()
		return errLost
	case answerIsLost:
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
