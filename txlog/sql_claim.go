package txlog

import (
	"context"
	"database/sql"
	"time"
)

// Claim implements [Storage].
func (s *SQLStorage) Claim(ctx context.Context, r ClaimRequest) ([]*Unit, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := validateClaim(&r); err != nil {
		return nil, err
	}
	what := "claiming the units of " + r.DataSource
	// Prepared before the transaction takes a connection, see within.
	if s.backend.Flavor != FlavorSQLite {
		if _, err := s.stmt(ctx, shape{selectDue, 0}); err != nil {
			return nil, s.failed(what, err)
		}
	}
	done, err := s.oneClaim(ctx)
	if err != nil {
		return nil, s.failed(what, err)
	}
	defer done()
	start := time.Now()
	for try := 0; ; try++ {
		units, err := s.claim(ctx, &r)
		if err == nil || !s.retry.Again(ctx, err, try, start) {
			return units, s.failed(what, err)
		}
	}
}

// oneClaim lets this process make one claim at a time on MySQL. There a claim
// locks, until it is committed, also the row behind its last one in the index:
// the first of the next data source, which a claim for that would skip as
// somebody else's. What a claim of another process hides is found by the next.
func (s *SQLStorage) oneClaim(ctx context.Context) (done func(), err error) {
	if s.backend.Flavor != FlavorMySQL {
		return func() {}, nil
	}
	select {
	case s.claiming <- struct{}{}:
		return func() { <-s.claiming }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// claim takes units in one local transaction. If its COMMIT is not answered the
// units rest until the lease ends, whose token nobody knows.
func (s *SQLStorage) claim(ctx context.Context, r *ClaimRequest) ([]*Unit, error) {
	lease := Lease{Token: s.claimToken(), Deadline: time.Now().Add(r.Lease)}
	var due []stored
	err := s.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		due, err = units(ctx, q, shape{selectDue, 0}, r.DataSource, millis(r.MinAge), r.Limit)
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
			_, err := q.run(ctx, shape{takeRows, len(portion)}, append([]any{lease.Token, until, until}, portion...)...)
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

// claimToken gives one that no claim had before. Those of one process differ
// mostly in their last three digits, so that a person sees whose units are whose.
func (s *SQLStorage) claimToken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.claims % MaxStatements
	if n == 0 {
		s.claimer = NewID()
	}
	s.claims++
	return rowID(s.claimer, n)
}

// DataSources implements [Storage]: one look into the index for each name.
func (s *SQLStorage) DataSources(ctx context.Context) ([]string, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	names := []string{}
	for last := ""; ; {
		name, err := s.nextDataSource(ctx, last)
		if err != nil {
			return nil, s.failed("reading the data sources", err)
		}
		if name == "" {
			return names, nil
		}
		names = append(names, name)
		last = name
	}
}

// nextDataSource gives the name behind last; "" when there is none.
func (s *SQLStorage) nextDataSource(ctx context.Context, last string) (string, error) {
	rows, err := single{s}.query(ctx, shape{nextDataSource, 0}, last)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var name sql.NullString
	if rows.Next() {
		if err := rows.Scan(&name); err != nil {
			return "", err
		}
	}
	return name.String, rows.Err()
}
