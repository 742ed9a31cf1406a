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
		if _, err := c.db.stmt(ctx, c.due()); err != nil {
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

// due is the statement that finds due units.
func (c *claimer) due() shape {
	if c.db.unlocked {
		return shape{kind: selectDueUnlocked}
	}
	return shape{kind: selectDue}
}

// claim takes units in one local transaction. If its COMMIT is not answered the
// units rest until the lease ends, whose token nobody knows.
//
// The rows are locked as they are found, so that claimers do not wait for each
// other; but it is the UPDATE that decides, which takes only what is still due:
// on a Galera cluster another node grants the same lock, and TiDB has none that is
// skipped. Who comes second finds fewer rows, or is refused at COMMIT.
func (c *claimer) claim(ctx context.Context, r *ClaimRequest) ([]*Unit, error) {
	lease := Lease{Token: c.token(), Deadline: time.Now().Add(r.Lease)}
	var due []stored
	err := c.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		due, err = units(ctx, q, c.due(), r.DataSource, millis(r.MinAge), r.Limit)
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
		var taken int64
		if err := chunks(ids, func(portion []any) error {
			args := append(append([]any{lease.Token, until, until}, portion...), due[0].now)
			n, err := q.run(ctx, shape{kind: takeRows, rows: len(portion)}, args...)
			taken += n
			return err
		}); err != nil || taken == int64(len(ids)) {
			return err
		}
		due, err = c.taken(ctx, q, due, lease.Token)
		return err
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

// taken keeps those units of due that bear the token.
func (c *claimer) taken(ctx context.Context, q runner, due []stored, token string) (ours []stored, err error) {
	heads := make([]string, len(due))
	for i, u := range due {
		heads[i] = u.ID
	}
	tokens, err := tokensOf(ctx, q, heads)
	for _, u := range due {
		if tokens[u.ID] == token {
			ours = append(ours, u)
		}
	}
	return ours, err
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
