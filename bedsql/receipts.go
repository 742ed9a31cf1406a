package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

type guaranteeKey struct{}

// WithGuarantee returns a context under which writes have another guarantee
// than the one of Config. A local transaction has that of its BeginTx or BEGIN,
// and where autocommit is off, so that nobody begins it, that of Config.
func WithGuarantee(ctx context.Context, g Guarantee) context.Context {
	return context.WithValue(ctx, guaranteeKey{}, g)
}

// exactlyOnce says whether a write under ctx leaves a receipt.
func (c *connector) exactlyOnce(ctx context.Context) bool {
	if keyFrom(ctx) != nil {
		return true
	}
	if g, ok := ctx.Value(guaranteeKey{}).(Guarantee); ok {
		return g == ExactlyOnce
	}
	return c.cfg.Guarantee == ExactlyOnce
}

// ReceiptTableError says that the target has no usable table bed_receipt and
// that the account may not create it, or that the one there is of an older form.
// It holds the statement to run. The write is not applied.
type ReceiptTableError = delivery.ReceiptTableError

// ensureReceipts finds or creates the table of receipts, once for each
// connector. A target that is out of reach is no error: the attempts will meet
// that, and look for the table themselves.
func (c *Conn) ensureReceipts(ctx context.Context) error {
	if c.c.place.Load() != nil || c.dead || c.ready(ctx) != nil {
		return nil //nolint:nilerr // the attempts will meet it
	}
	err := c.c.locateReceipts(ctx, c.inner)
	if table := (*ReceiptTableError)(nil); errors.As(err, &table) {
		return err
	}
	if err != nil && !c.c.dialect.Class(err).Answered() {
		c.kill()
	}
	return nil
}

// findReceipts is ensureReceipts for an attempt of u on whatever connection: the
// target may have been out of reach before. No error means that the table is
// there, and that the log says where.
func (c *connector) findReceipts(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	place := c.place.Load()
	if place == nil {
		if err := c.locateReceipts(ctx, conn); err != nil {
			return attempt.Failed(c.dialect, err, true)
		}
		place = c.place.Load()
	}
	if u.Place != "" || *place == "" {
		return attempt.Outcome{}
	}
	// A job that looks elsewhere would not see what this attempt applies.
	if err := c.cfg.Storage.Locate(ctx, u, *place); err != nil {
		return attempt.Outcome{Class: delivery.Unreachable, Err: fmt.Errorf("bed: not sent, the log could not be told where its receipt will be: %w", err)}
	}
	return attempt.Outcome{}
}

// locateReceipts finds or creates the table of receipts, and remembers where.
func (c *connector) locateReceipts(ctx context.Context, conn driver.Conn) error {
	if err := attempt.EnsureReceipts(ctx, c.dialect, conn); err != nil {
		return err
	}
	place, err := attempt.ReceiptPlace(ctx, c.dialect, conn)
	if err != nil && !c.dialect.Class(err).Answered() {
		return err
	}
	c.place.Store(&place)
	return nil
}

// receiptsIn says how the receipt of a local transaction is written. A session
// that has moved may find another table of that name, or none; known is false
// if it cannot be told where the right one is.
func (c *connector) receiptsIn(t *localTx) (r attempt.Receipts, known bool) {
	r = c.receipts
	if !t.moved {
		return r, true
	}
	if place := c.place.Load(); place != nil {
		r.Place = *place
	}
	return r, r.Place != ""
}

// replay runs a unit once more.
func (c *connector) replay(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	return c.replayCalls(ctx, conn, nil, u)
}

// replayCalls is replay for one who may still have what the log would be read
// for; nil if not.
func (c *connector) replayCalls(ctx context.Context, conn driver.Conn, calls []delivery.Call, u *txlog.Unit) attempt.Outcome {
	if u.Receipt != "" {
		if out := c.findReceipts(ctx, conn, u); out.Err != nil {
			return out
		}
	}
	if calls == nil {
		return attempt.Replay(ctx, c.dialect, conn, u, c.receipts)
	}
	return attempt.Run(ctx, c.dialect, conn, calls, u, c.receipts)
}

// void decides a unit in doubt.
func (c *connector) void(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	if out := c.findReceipts(ctx, conn, u); out.Err != nil {
		return out
	}
	return attempt.Void(ctx, c.dialect, conn, u, c.receipts)
}

// beforeBegin looks for the table of receipts before a transaction begins: to
// create it later would commit the transaction where DDL does.
func (c *Conn) beforeBegin(ctx context.Context) error {
	if c.tx != nil || c.pinned != "" || skipped(ctx) || !c.c.exactlyOnce(ctx) {
		return nil
	}
	c.eraseInTurn(ctx)
	return c.ensureReceipts(ctx)
}

// Bounds of the receipts that wait to be erased.
const (
	eraseSoon   = 200 * time.Millisecond
	eraseBatch  = 32
	eraseAtMost = 1 << 14
)

// eraser erases receipts in batches, behind the callers, on a connection of
// its own. What it cannot erase stays for its retention.
//
// SQLite has one writer at a time, and an application that keeps to one
// connection is never locked out. There receipts are erased on the callers'
// own connections between their writes.
type eraser struct {
	c *connector
	// inTurn: it is SQLite.
	inTurn bool

	mu     sync.Mutex
	ids    []string
	armed  bool
	closed bool
	busy   sync.WaitGroup
}

// add takes a receipt that no attempt can need any more.
func (e *eraser) add(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.ids) >= eraseAtMost {
		return
	}
	e.ids = append(e.ids, id)
	if !e.armed && !e.inTurn {
		e.armed = true
		e.busy.Add(1)
		time.AfterFunc(eraseSoon, func() {
			defer e.busy.Done()
			ctx, cancel := context.WithTimeout(context.Background(), e.c.cfg.LogTimeout)
			defer cancel()
			e.flush(ctx)
		})
	}
}

// take gives what waits, if it is at least so many.
func (e *eraser) take(least int) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ids) < least {
		return nil
	}
	ids := e.ids
	e.ids, e.armed = nil, false
	return ids
}

// flush erases what waits.
func (e *eraser) flush(ctx context.Context) {
	ids := e.take(1)
	if len(ids) == 0 || e.c.target.NoSideConnection {
		return
	}
	conn, err := e.c.dial(ctx)
	if err == nil {
		err = attempt.EraseReceipts(ctx, e.c.dialect, conn.Conn, ids)
		if cerr := conn.Close(); err == nil && !errors.Is(cerr, driver.ErrBadConn) {
			err = cerr
		}
	}
	e.failed(err)
}

func (e *eraser) failed(err error) {
	if err != nil {
		e.c.log.WithField("error", e.c.dialect.Describe(err)).Info("bed: receipts could not be erased, they stay for their retention")
	}
}

// eraseInTurn erases receipts before a write or a transaction on its connection,
// if this is how it is done: after one, changes() is the application's.
func (c *Conn) eraseInTurn(ctx context.Context) {
	e := c.c.eraser
	if !e.inTurn || c.tx != nil || c.dead || c.inner == nil {
		return
	}
	ids := e.take(eraseBatch)
	if ids == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.c.cfg.LogTimeout)
	defer cancel()
	e.failed(attempt.EraseReceipts(ctx, c.c.dialect, &c.session, ids))
}

// close erases what waits and takes no more.
func (e *eraser) close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.flush(ctx)
	e.busy.Wait()
}
