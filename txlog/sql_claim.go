package txlog

import (
	"context"
	"math"
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
	// reaches are by data source.
	reaches map[string]*reach
}

// begin waits for the turn of a claim. On MySQL a process makes one claim at a
// time: there a claim also locks, until it is committed, the row after its last
// one in the index. That is the first of the next data source, which a claim for
// that data source would skip as somebody else's. What a claim of another process
// hides is found by the next one.
func (c *claimer) begin(ctx context.Context) (done func(), err error) {
	// It is prepared before the transaction takes a connection, see within.
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

// claim takes units in one local transaction. If its COMMIT is not answered, the
// units rest until the lease ends, because nobody knows its token.
//
// The rows are locked as they are found, so that claimers do not wait for each
// other. But it is the UPDATE that decides, and it takes only what is still due:
// on a Galera cluster another node grants the same lock, and TiDB skips no locks.
// The second claimer finds fewer rows, or is refused at COMMIT.
func (c *claimer) claim(ctx context.Context, r *ClaimRequest) ([]*Unit, error) {
	lease := Lease{Token: c.token(), Deadline: time.Now().Add(r.Lease)}
	var due []stored
	reach := c.reach(r.DataSource)
	from, look := reach.begin(time.Now()), look{}
	err := c.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		due, look, err = c.find(ctx, q, r, from)
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
	if c.db.backend.Flavor != FlavorSQLite { // its index keeps nothing of what was claimed
		reach.end(look, len(due), time.Now())
	}
	claimed := make([]*Unit, len(due))
	for i, u := range due {
		u.Lease, u.Leased, u.AtOnce = lease, true, false
		claimed[i] = u.Unit
	}
	return claimed, nil
}

// find finds due units after from, and those that are due at once.
func (c *claimer) find(ctx context.Context, q runner, r *ClaimRequest, from int64) (due []stored, l look, err error) {
	if from > atOnce {
		due, err = units(ctx, q, c.due(), r.DataSource, atOnce, atOnce, millis(r.MinAge), r.Limit)
	}
	began := time.Now()
	if err == nil && len(due) < r.Limit {
		begin := from
		if begin == atOnce {
			begin = longAgo
		}
		var more []stored
		more, err = units(ctx, q, c.due(), r.DataSource, begin, math.MaxInt64, millis(r.MinAge), r.Limit-len(due))
		due = append(due, more...)
		l = look{from: from, took: max(time.Since(began), 1), full: len(due) == r.Limit}
		if n := len(due); n > 0 {
			if !due[n-1].AtOnce {
				l.last = due[n-1].NextTry.UnixMilli()
			}
			l.settled = due[0].now - millis(r.MinAge) - lateCommit.Milliseconds()
		}
	}
	return due, l, err
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

// reach is that of a data source. It serves one claim at a time, or several that
// disturb each other's figures a little.
func (c *claimer) reach(dataSource string) *reach {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.reaches[dataSource]
	if r == nil {
		if c.reaches == nil {
			c.reaches = map[string]*reach{}
		}
		r = &reach{}
		c.reaches[dataSource] = r
	}
	return r
}

// token gives a token that no claim has had before. Those of one process differ
// mostly in their last three digits, so that an operator sees which units belong
// together.
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
