package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
)

// tx is a wrapped local transaction.
type tx struct {
	c     *Conn
	ctx   context.Context
	inner driver.Tx
}

// Commit implements driver.Tx. It logs the writes of the transaction as one unit before it sends
// COMMIT. The caller gets the database's answer to COMMIT. Without an answer the unit is delivered
// again if that is safe, and parked otherwise.
func (t *tx) Commit() error {
	c := t.c
	_ = c.tx.still(t.ctx) // it is lost if not
	c.tx.commits()
	if l := c.tx; l != nil && l.keyed.Keeps() {
		l.keyed.Kept.Ended = l.unmet.err != nil || l.state != txOpen
	}
	if c.tx != nil && c.tx.state == txLost {
		err := c.tx.lostError()
		if !errors.Is(err, ErrUnknownOutcome) {
			err = fmt.Errorf("bed: nothing was committed: %w", err)
		}
		c.undo(t.ctx, t.inner)
		c.closed()
		return err
	}
	swallowed, err := ender{
		finish: func(ctx context.Context) ending {
			if err := attempt.CommitTx(ctx, c.c.dialect, &c.session, t.inner); err != nil {
				return ending{Outcome: c.lossy(attempt.CommitFailed(ctx, c.c.dialect, &c.session, err))}
			}
			return ending{}
		},
		plain: true,
		undo:  func() { c.undo(t.ctx, t.inner) },
	}.commit(t.ctx, c)
	if swallowed {
		return nil
	}
	return err
}

// Rollback implements driver.Tx. It leaves nothing in the log.
func (t *tx) Rollback() error { return t.c.rolledBack(t.ctx, t.inner) }
