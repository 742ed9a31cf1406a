package txlog

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// claimer makes the claims of one process.
type claimer struct {
	db *database
	// turn is full during a claim on MySQL. Until its commit, such a claim also locks the row
	// after its last one in the index: the first row of the next data source, which a claim for
	// that data source would then skip. Rows hidden by a claim of another process are found by
	// the next claim.
	turn chan struct{}

	mu     sync.Mutex
	claims int
	// prefix begins the tokens of the claims.
	prefix string
	// reaches maps data sources to their reach.
	reaches map[string]*reach
}

// claim takes units in one local transaction. If its COMMIT gets no answer, the units rest
// until the lease ends, because their token is lost.
//
// The query locks the rows as it finds them, so that claimers do not wait for each other.
// But the UPDATE decides, and it takes only units that are still due: on a Galera cluster
// another node grants the same lock, and TiDB skips no locks. The second claimer then finds
// fewer rows, or its COMMIT fails.
func (c *claimer) claim(ctx context.Context, r *entry.ClaimRequest) (due []*Unit, err error) {
	if c.db.backend.Flavor == sqltext.MySQL {
		select {
		case c.turn <- struct{}{}:
			defer func() { <-c.turn }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	lease := entry.Lease{Token: c.token(), Deadline: time.Now().Add(r.Lease)}
	reach := c.reach(r.DataSource)
	from, look, all := reach.begin(time.Now()), look{}, r.After == nil
	if !all {
		from = r.After.NextTry.UnixMilli()
	}
	err = c.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		due, look, err = c.find(ctx, q, r, from)
		if n := len(due); r.Pick != nil && n > 0 {
			due = r.Pick(due)
			all = all && len(due) == n
		}
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
			ids = append(ids, entry.RowIDs(u.ID, len(u.Statements))...)
			u.NextTry = time.UnixMilli(until)
		}
		if taken, err := runIn(ctx, q, takeRows, []any{lease.Token, until, until}, ids, now); err != nil || taken == len(ids) {
			return err
		}
		tokens, err := tokensOf(ctx, q, ids)
		due = slices.DeleteFunc(due, func(u *Unit) bool { return tokens[u.ID] != lease.Token })
		return err
	})
	if err != nil {
		return nil, err
	}
	if c.db.backend.Flavor != sqltext.SQLite { // its index keeps nothing of what was claimed
		if !all { // units are left before the last one
			look.settled = 0
		}
		reach.end(look, len(due), time.Now())
	}
	for _, u := range due {
		u.Lease, u.Leased, u.AtOnce = lease, true, false
	}
	return due, nil
}

// find finds due units from next_try_time from on, and units that are due at once.
func (c *claimer) find(ctx context.Context, q runner, r *entry.ClaimRequest, from int64) (due []*Unit, l look, err error) {
	sh := shape{kind: selectDue}
	if c.db.unlocked {
		sh.kind = selectDueUnlocked
	}
	if from > atOnce {
		due, err = firstRows(ctx, q, sh, r.DataSource, atOnce, atOnce, "", atOnce, entry.Millis(r.MinAge), r.Limit)
	}
	began := time.Now()
	if err != nil || len(due) == r.Limit {
		return due, l, err
	}
	begin := from
	if begin == atOnce {
		begin = longAgo
	}
	last := ""
	if r.After != nil {
		last = r.After.ID
	}
	more, err := firstRows(ctx, q, sh, r.DataSource, begin, begin, last, math.MaxInt64, entry.Millis(r.MinAge), r.Limit-len(due))
	due = append(due, more...)
	l = look{from: from, took: max(time.Since(began), 1), full: len(due) == r.Limit}
	if n := len(due); n > 0 {
		if !due[n-1].AtOnce {
			l.last = due[n-1].NextTry.UnixMilli()
		}
		l.settled = due[0].ReadAt.UnixMilli() - entry.Millis(r.MinAge) - lateCommit.Milliseconds()
	}
	return due, l, err
}

// reach returns the reach of a data source. It serves one claim at a time; several slightly
// disturb each other's figures.
func (c *claimer) reach(dataSource string) *reach {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.reaches[dataSource]
	if r == nil {
		r = &reach{}
		c.reaches[dataSource] = r
	}
	return r
}

// token returns a fresh token for a claim. The tokens of one process mostly differ in their
// last three digits only, which shows operators the units that belong together.
func (c *claimer) token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.claims % entry.MaxStatements
	if n == 0 {
		c.prefix = entry.NewID()
	}
	c.claims++
	return entry.RowID(c.prefix, n)
}

const (
	// manyClaimed is the number of claimed units after which claims no longer begin at the
	// start of the index.
	manyClaimed = 1000
	// lateCommit is the longest delay between setting a row's time and its visibility.
	lateCommit = 2 * time.Second
	// quickLook is the duration of an unobstructed look from the beginning. A slow look is
	// repeated only after slowLooks times its duration, and after lookEvery at the latest. A
	// busy job then spends less than one in a hundred of its claims on such looks.
	quickLook = 10 * time.Millisecond
	slowLooks = 500
	lookEvery = time.Minute
)

// reach tracks how far claims have emptied the index of a data source. Claimed units leave
// their old index entries there, in front of all due ones. The database erases these once no
// transaction can see them. While the log's database holds a snapshot (a backup, a forgotten
// session) they stay, and a claim from the beginning of the index reads them all.
//
// So after many claimed units, claims begin at the end of the last one. Rows may still
// appear further in front: a row locked by a claim that failed, a very late commit, or any
// row after the log's clock was set back. Looks from the beginning, as frequent as they are
// cheap, find them.
type reach struct {
	mu sync.Mutex
	// claimed counts the units since a quick look from the beginning.
	claimed int
	// from is the next_try_time before which the index is empty.
	from int64
	// whole is the time of the next look from the beginning.
	whole time.Time
}

// look is the result of a claim's query.
type look struct {
	// from is where it began, took is its duration.
	from int64
	took time.Duration
	// full is set if there may be more units after it.
	full bool
	// last is the next_try_time of the last unit found, 0 without a unit. Up to settled, all
	// entries that will ever be in the log are visible and old enough.
	last, settled int64
}

// known returns the beginning of the next claim for each data source whose index is empty up to it.
func (c *claimer) known(now time.Time) map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	begins := map[string]int64{}
	for name, r := range c.reaches {
		if from := r.begin(now); from > atOnce {
			begins[name] = from
		}
	}
	return begins
}

// begin returns the start of the next claim.
func (r *reach) begin(now time.Time) (from int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed < manyClaimed || !now.Before(r.whole) {
		return atOnce
	}
	return r.from
}

// end records the result of a committed claim.
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
