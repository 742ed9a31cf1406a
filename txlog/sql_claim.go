package txlog

import (
	"context"
	"sync"
	"time"
)

// claimer makes the claims of one process.
type claimer struct {
	db *database
	// turn is full while a claim is made, see begin.
	turn chan struct{}

	mu     sync.Mutex
	claims int
	// prefix is what the tokens of the claims begin with.
	prefix string
}

// begin waits for the turn of a claim. On MySQL a process makes one at a time:
// there a claim locks, until it is committed, also the row behind its last one
// in the index: the first of the next data source, which a claim for that would
// skip as somebody else's. What a claim of another process hides is found by
// the next.
func (c *claimer) begin(ctx context.Context) (done func(), err error) {
	// Prepared before the transaction takes a connection, see within.
	if c.db.backend.Flavor != FlavorSQLite {
		if _, err := c.db.stmt(ctx, shape{kind: selectDue}); err != nil {
			return nil, err
		}
	}
	if c.db.backend.Flavor != FlavorMySQL {
		return func() {}, nil
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// claim takes units in one local transaction. If its COMMIT is not answered the
// units rest until the lease ends, whose token nobody knows.
func (c *claimer) claim(ctx context.Context, r *ClaimRequest) ([]*Unit, error) {
	lease := Lease{Token: c.token(), Deadline: time.Now().Add(r.Lease)}
	var due []stored
	err := c.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		due, err = units(ctx, q, shape{kind: selectDue}, r.DataSource, millis(r.MinAge), r.Limit)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := loadStatements(ctx, q, due); err != nil {
			return err
		}
		until := due[0].now + leaseMillis(r.Lease)
		var ids []string
		for _, u := range due {
			ids = append(ids, u.rowIDs()...)
			u.NextTry = time.UnixMilli(until)
		}
		return chunks(ids, func(portion []any) error {
			_, err := q.run(ctx, shape{kind: takeRows, rows: len(portion)}, append([]any{lease.Token, until, until}, portion...)...)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	claimed := make([]*Unit, len(due))
	for i, u := range due {
		u.Lease, u.Leased, u.AtOnce = lease, true, false
		claimed[i] = u.Unit
	}
	return claimed, nil
}

// token gives one that no claim had before. Those of one process differ
// mostly in their last three digits, so that an operator sees whose units are whose.
func (c *claimer) token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.claims % MaxStatements
	if n == 0 {
		c.prefix = NewID()
	}
	c.claims++
	return rowID(c.prefix, n)
}
