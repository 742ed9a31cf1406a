package txlog

import (
	"context"
	"slices"
	"time"

	"github.com/bedsql/bed/txlog/internal/groupcommit"
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
	done, err := s.claimer.begin(ctx)
	if err != nil {
		return nil, s.failed(what, err)
	}
	defer done()
	var units []*Unit
	err = s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		units, err = s.claimer.claim(ctx, &r)
		return err
	})
	return units, s.failed(what, err)
}

// Release implements [Storage].
func (s *SQLStorage) Release(ctx context.Context, u *Unit, v Verdict) error {
	if err := s.usable(); err != nil {
		return err
	}
	if u == nil || u.Lease.Token == "" {
		return leaseLost("releasing", []*Unit{u})
	}
	verdict := []any{bit(v.CountTry), bit(v.InDoubt), nullIfEmpty(errorText(v.Err)), bit(v.Park), millis(v.After)}
	what := "releasing unit " + u.ID
	owned := false
	// The lease only says until when the unit is certainly the owner's; the fence
	// decides.
	end := time.Now().Add(groupcommit.RepeatFor)
	if end.Before(u.Lease.Deadline) {
		end = u.Lease.Deadline
	}
	inDoubt, err := s.retry.Do(ctx, end, func(ctx context.Context, again bool) error {
		err := s.db.onUnit(ctx, u, func(ctx context.Context, q runner) (err error) {
			owned, err = runFenced(ctx, q, releaseOwned, slices.Clone(verdict), u.ID, u.Lease.Token, len(u.Statements))
			return err
		})
		if err == nil && !owned && again {
			// As with a removal: before its lease ended only this owner could
			// have given it up.
			owned = !u.Lease.Over()
		}
		return err
	})
	switch {
	case inDoubt:
		return s.unknown(what, ErrOutcomeUnknown, err)
	case err != nil:
		return s.failed(what, err)
	case !owned:
		return leaseLost("releasing", []*Unit{u})
	}
	s.keepAttempts(ctx, u.ID, v.Attempts)
	return nil
}

// Locate implements [Storage].
func (s *SQLStorage) Locate(ctx context.Context, u *Unit, place string) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := validatePlace(u, place); err != nil {
		return err
	}
	located := Unit{Settings: u.Settings, Place: place, TraceParent: u.TraceParent}
	owned := false
	err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		owned, err = runFenced(ctx, s.db, locateOwned, []any{located.encodeSettings()}, u.ID, u.Lease.Token, 1)
		if err == nil && !owned && u.Lease.Token != "" {
			// Or the driver counts only the rows that changed.
			tokens, terr := s.db.tokens(ctx, []string{u.ID})
			owned, err = tokens[u.ID] == u.Lease.Token, terr
		}
		return err
	})
	switch {
	case err != nil:
		return s.failed("locating the receipt of unit "+u.ID, err)
	case !owned:
		return leaseLost("locating", []*Unit{u})
	}
	u.Place = place
	return nil
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func nullIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Renew implements [Storage]. A renewal without an answer is not repeated: an
// error leaves the deadlines of those in question as they were.
func (s *SQLStorage) Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := validateLease(lease); err != nil {
		return nil, err
	}
	var owned []*Unit
	for _, u := range units {
		if u == nil || u.Lease.Token == "" {
			lost = append(lost, u)
			continue
		}
		owned = append(owned, u)
	}
	for len(owned) > 0 {
		n := min(len(owned), maxRows)
		missed, err := s.renew(ctx, lease, owned[:n])
		lost = append(lost, missed...)
		if err != nil {
			return lost, s.failed("renewing leases", err)
		}
		owned = owned[n:]
	}
	return lost, nil
}

// renew prolongs a portion of the leases. Locks are taken in the order of the
// ids, so that two renewals cannot block each other.
func (s *SQLStorage) renew(ctx context.Context, lease time.Duration, units []*Unit) (lost []*Unit, err error) {
	units = slices.Clone(units)
	slices.SortFunc(units, func(a, b *Unit) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	deadline := time.Now().Add(lease)
	ms := leaseMillis(lease)
	args := []any{ms, ms}
	var small, doubtful []*Unit
	for _, u := range units {
		if len(u.Statements) <= 1 {
			small = append(small, u)
			args = append(args, u.ID, u.Lease.Token)
			continue
		}
		owned := false
		err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) error {
			return s.db.onUnit(ctx, u, func(ctx context.Context, q runner) (err error) {
				owned, err = runFenced(ctx, q, renewOwned, []any{ms, ms}, u.ID, u.Lease.Token, len(u.Statements))
				return err
			})
		})
		if err != nil {
			return lost, err
		}
		if owned {
			u.Lease.Deadline = deadline
		} else {
			doubtful = append(doubtful, u)
		}
	}
	n, err := s.renewSmall(ctx, args, small)
	if err != nil {
		return lost, err
	}
	if n == int64(len(small)) {
		for _, u := range small {
			u.Lease.Deadline = deadline
		}
	} else {
		doubtful = append(doubtful, small...)
	}
	if len(doubtful) == 0 {
		return nil, nil
	}
	// Not all were owned, or the driver counts only the rows that changed.
	heads := make([]string, len(doubtful))
	for i, u := range doubtful {
		heads[i] = u.ID
	}
	tokens, err := s.db.tokens(ctx, heads)
	if err != nil {
		return nil, err
	}
	for _, u := range doubtful {
		if tokens[u.ID] != u.Lease.Token {
			lost = append(lost, u)
			continue
		}
		u.Lease.Deadline = deadline
	}
	return lost, nil
}

// renewSmall prolongs the leases of units with one statement each, all at once.
// args holds the statement's first parameters and the units' ids and tokens.
func (s *SQLStorage) renewSmall(ctx context.Context, args []any, small []*Unit) (n int64, err error) {
	if len(small) == 0 {
		return 0, nil
	}
	size := roundUp(len(small))
	last := small[len(small)-1]
	for range size - len(small) {
		args = append(args, last.ID, last.Lease.Token)
	}
	err = s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		n, err = s.db.run(ctx, shape{kind: renewOwned, rows: size, form: byPairs}, args...)
		return err
	})
	return n, err
}
