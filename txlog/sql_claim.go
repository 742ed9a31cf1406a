package txlog

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// claimer makes the claims of one process.
type claimer struct {
	db *database
	// turn is full while a claim is made on MySQL. There a claim also locks, until it
	// is committed, the row after its last one in the index. That is the first of the
	// next data source, which a claim for that data source would skip as somebody
	// else's. What a claim of another process hides is found by the next one.
	turn chan struct{}

	mu     sync.Mutex
	claims int
	// prefix is what the tokens of the claims begin with.
	prefix string
	// reaches are by data source.
	reaches map[string]*reach
}

// claim takes units in one local transaction. If its COMMIT is not answered, the
// units rest until the lease ends, because nobody knows its token.
//
// The rows are locked as they are found, so that claimers do not wait for each
// other. But it is the UPDATE that decides, and it takes only what is still due:
// on a Galera cluster another node grants the same lock, and TiDB skips no locks.
// The second claimer finds fewer rows, or is refused at COMMIT.
func (c *claimer) claim(ctx context.Context, r *ClaimRequest) (due []*Unit, err error) {
	if c.db.backend.Flavor == FlavorMySQL {
		select {
		case c.turn <- struct{}{}:
			defer func() { <-c.turn }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	lease := Lease{Token: c.token(), Deadline: time.Now().Add(r.Lease)}
	reach := c.reach(r.DataSource)
	from, look := reach.begin(time.Now()), look{}
	err = c.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		due, look, err = c.find(ctx, q, r, from)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := loadStatements(ctx, q, due); err != nil {
			return err
		}
		now := due[0].ReadAt.UnixMilli()
		until := now + r.Lease.Milliseconds() + leaseSlack
		var ids []string
		for _, u := range due {
			ids = append(ids, rowIDs(u.ID, len(u.Statements))...)
			u.NextTry = time.UnixMilli(until)
		}
		var taken int
		if err := chunks(ids, func(portion []any) error {
			args := append(append([]any{lease.Token, until, until}, portion...), now)
			n, err := run(ctx, q, shape{kind: takeRows, rows: len(portion)}, args...)
			taken += int(n)
			return err
		}); err != nil || taken == len(ids) {
			return err
		}
		tokens, err := tokensOf(ctx, q, ids)
		due = slices.DeleteFunc(due, func(u *Unit) bool { return tokens[u.ID] != lease.Token })
		return err
	})
	if err != nil {
		return nil, err
	}
	if c.db.backend.Flavor != FlavorSQLite { // its index keeps nothing of what was claimed
		reach.end(look, len(due), time.Now())
	}
	for _, u := range due {
		u.Lease, u.Leased, u.AtOnce = lease, true, false
	}
	return due, nil
}

// find finds due units after from, and those that are due at once.
func (c *claimer) find(ctx context.Context, q runner, r *ClaimRequest, from int64) (due []*Unit, l look, err error) {
	sh := shape{kind: selectDue}
	if c.db.unlocked {
		sh.kind = selectDueUnlocked
	}
	if from > atOnce {
		due, err = firstRows(ctx, q, sh, r.DataSource, atOnce, atOnce, millis(r.MinAge), r.Limit)
	}
	began := time.Now()
	if err != nil || len(due) == r.Limit {
		return due, l, err
	}
	begin := from
	if begin == atOnce {
		begin = longAgo
	}
	more, err := firstRows(ctx, q, sh, r.DataSource, begin, math.MaxInt64, millis(r.MinAge), r.Limit-len(due))
	due = append(due, more...)
	l = look{from: from, took: max(time.Since(began), 1), full: len(due) == r.Limit}
	if n := len(due); n > 0 {
		if !due[n-1].AtOnce {
			l.last = due[n-1].NextTry.UnixMilli()
		}
		l.settled = due[0].ReadAt.UnixMilli() - millis(r.MinAge) - lateCommit.Milliseconds()
	}
	return due, l, err
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

const (
	// manyClaimed is the number of claimed units from which claims begin after
	// what was claimed.
	manyClaimed = 1000
	// lateCommit is how long after its time was set a row may become visible.
	lateCommit = 2 * time.Second
	// quickLook is what a look from the beginning takes while nothing is in its
	// way. A slow one is repeated only after a multiple of the time that it took,
	// as many that looks are less than one in a hundred of the claims of a job
	// that always has something to claim, and after lookEvery at the latest.
	quickLook = 10 * time.Millisecond
	slowLooks = 500
	lookEvery = time.Minute
)

// reach is how far claims have emptied the index of a data source. Claimed units
// leave their old index entries there, in front of all that is due. They are
// erased as soon as no transaction may see them any more; while a snapshot is
// held in the log's database (a backup, a forgotten session) they stay, and a
// claim from the beginning of the index reads them all.
//
// So claims begin where the last one ended, once many units were claimed. Rows
// may still appear further in front: one that was locked by a claim which failed,
// one that was committed very late, or any after the log's clock was set back. A
// look from the beginning, which is made as often as it is cheap, finds them.
type reach struct {
	mu sync.Mutex
	// claimed units since a quick look from the beginning.
	claimed int
	// from is the next_try_time before which nothing is left.
	from int64
	// whole is when a claim looks from the beginning again.
	whole time.Time
}

// look is what a claim has seen.
type look struct {
	// from is where it began, took how long it took.
	from int64
	took time.Duration
	// full: there may be more after it.
	full bool
	// last is the next_try_time of the last unit found. settled is the one up to
	// which everything that will be in the log is there and old enough. 0: none
	// was found.
	last, settled int64
}

// emptied is a data source whose index is empty up to a time.
type emptied struct {
	name string
	from int64
}

// known are the data sources whose claims do not look from the beginning now, in
// lexical order.
func (c *claimer) known(now time.Time) (all []emptied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, r := range c.reaches {
		if from := r.begin(now); from > atOnce {
			all = append(all, emptied{name, from})
		}
	}
	slices.SortFunc(all, func(a, b emptied) int { return strings.Compare(a.name, b.name) })
	return all
}

// begin gives where a claim begins.
func (r *reach) begin(now time.Time) (from int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed < manyClaimed || !now.Before(r.whole) {
		return atOnce
	}
	return r.from
}

// end notes what a claim has seen that was committed.
func (r *reach) end(l look, claimed int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claimed += claimed
	if l.settled != 0 {
		if r.from = l.settled; l.full {
			r.from = min(l.last, l.settled)
		}
	}
	if l.took == 0 || l.from > atOnce {
		return
	}
	r.whole = now.Add(min(slowLooks*l.took, lookEvery))
	if l.took <= quickLook {
		r.claimed = claimed
	}
}
