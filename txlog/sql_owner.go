package txlog

import (
	"context"
	"slices"
	"time"
)

// rowIDs gives the ids of the unit's rows in their order.
func (u *Unit) rowIDs() []string { return rowIDs(u.ID, min(len(u.Statements), MaxStatements)) }

func rowIDs(id string, n int) []string {
	ids := make([]string, max(1, n))
	for i := range ids {
		ids[i] = rowID(id, i)
	}
	return ids
}

// runHeld runs a fenced statement over the rows of one unit and reports whether
// the unit was held. All its rows have the same owner, so that one of them tells.
func runHeld(ctx context.Context, q runner, k kind, before []any, id, token string, rows int) (held bool, err error) {
	if rows <= 1 {
		n, err := q.run(ctx, shape{kind: k, rows: 1}, append(before, id, token)...)
		return n > 0, err
	}
	err = chunks(rowIDs(id, rows), func(ids []any) error {
		args := append(slices.Clone(before), ids...)
		n, err := q.run(ctx, shape{kind: k, rows: len(ids)}, append(args, token)...)
		held = held || n > 0
		return err
	})
	return held, err
}

// Add implements [Storage]. It joins the writes of concurrent callers: what
// comes while a write is under way leaves as one INSERT when that is answered,
// see [WithWritesInFlight]. What waits is bounded (4096 rows, 32 MiB); beyond
// that Add waits for room. A caller whose context ends before its units left
// has written nothing. Units without a Lease.Token get the storage's own, units
// without a TransactionID their own id.
func (s *SQLStorage) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := validateLease(lease); err != nil {
		return err
	}
	for _, u := range units {
		if err := validate(u, s.token); err != nil {
			return err
		}
	}
	if len(units) == 0 {
		return nil
	}
	r := newRequest(adding)
	defer r.free()
	r.lease = lease
	if err := s.writer.encode(r, units); err != nil {
		return err
	}
	// The lease in the table is that of the first attempt that arrived: a
	// repetition does not prolong it. Behind its end somebody else may have
	// delivered and removed the unit, and a repetition would bring it back.
	switch inDoubt, err := s.queue.Do(ctx, r); {
	case inDoubt:
		return s.unknown("adding unit "+units[0].ID, ErrInDoubt, err)
	case err != nil:
		return s.failed("adding unit "+units[0].ID, err)
	}
	for _, u := range units {
		u.Lease.Deadline = r.deadline
		u.AddRepeated = r.repeated
	}
	return nil
}

// Remove implements [Storage]. It joins the removals of concurrent callers as
// [SQLStorage.Add] does. After an error, the units behind may not have been
// tried.
func (s *SQLStorage) Remove(ctx context.Context, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	var lost []*Unit
	for len(units) > 0 {
		n := removable(units)
		if n == 0 {
			lost = append(lost, units[0])
			units = units[1:]
			continue
		}
		missed, err := s.remove(ctx, units[:n])
		if err != nil {
			return err
		}
		lost = append(lost, missed...)
		units = units[n:]
	}
	return leaseLost("removing", lost)
}

func (s *SQLStorage) remove(ctx context.Context, units []*Unit) (lost []*Unit, err error) {
	r := newRequest(removing)
	defer r.free()
	r.holds = slices.Grow(r.holds, len(units))[:len(units)]
	for i, u := range units {
		r.holds[i] = held{id: u.ID, token: u.Lease.Token, rows: max(1, min(len(u.Statements), MaxStatements)), deadline: u.Lease.Deadline}
		r.Rows += r.holds[i].rows
	}
	r.Alone = r.Rows > maxRows
	switch inDoubt, err := s.queue.Do(ctx, r); {
	case inDoubt:
		return nil, s.unknown("removing unit "+units[0].ID, nil, err)
	case err != nil:
		return nil, s.failed("removing unit "+units[0].ID, err)
	}
	for i, u := range units {
		if !r.holds[i].removed {
			lost = append(lost, u)
		}
	}
	return lost, nil
}

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
	start := time.Now()
	for try := 0; ; try++ {
		units, err := s.claimer.claim(ctx, &r)
		if err == nil || !s.retry.Again(ctx, err, try, start) {
			return units, s.failed(what, err)
		}
	}
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
	held := false
	inDoubt, err := s.retry.Do(ctx, ownerEnd(u.Lease.Deadline, time.Now()), func(ctx context.Context, again bool) error {
		err := s.db.onUnit(ctx, u, func(ctx context.Context, q runner) (err error) {
			held, err = runHeld(ctx, q, releaseHeld, slices.Clone(verdict), u.ID, u.Lease.Token, len(u.Statements))
			return err
		})
		if err == nil && !held && again {
			// As with a removal: before its lease ended only this owner could
			// have given it up.
			held = time.Now().Before(u.Lease.Deadline)
		}
		return err
	})
	switch {
	case inDoubt:
		return s.unknown(what, nil, err)
	case err != nil:
		return s.failed(what, err)
	case !held:
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
	held := false
	err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		held, err = runHeld(ctx, s.db, locateHeld, []any{located.encodeSettings()}, u.ID, u.Lease.Token, 1)
		if err == nil && !held && u.Lease.Token != "" {
			// Or the driver counts only the rows that changed.
			tokens, terr := s.db.tokens(ctx, []string{u.ID})
			held, err = tokens[u.ID] == u.Lease.Token, terr
		}
		return err
	})
	switch {
	case err != nil:
		return s.failed("locating the receipt of unit "+u.ID, err)
	case !held:
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
	var held []*Unit
	for _, u := range units {
		if u == nil || u.Lease.Token == "" {
			lost = append(lost, u)
			continue
		}
		held = append(held, u)
	}
	for len(held) > 0 {
		n := min(len(held), maxRows)
		missed, err := s.renew(ctx, lease, held[:n])
		lost = append(lost, missed...)
		if err != nil {
			return lost, s.failed("renewing leases", err)
		}
		held = held[n:]
	}
	return lost, nil
}

// renew prolongs a portion of the leases. Locks are taken in the order of the
// ids, so that two who renew cannot block each other.
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
		held := false
		err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) error {
			return s.db.onUnit(ctx, u, func(ctx context.Context, q runner) (err error) {
				held, err = runHeld(ctx, q, renewHeld, []any{ms, ms}, u.ID, u.Lease.Token, len(u.Statements))
				return err
			})
		})
		if err != nil {
			return lost, err
		}
		if held {
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
	// Not all were held, or the driver counts only the rows that changed.
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

// renewSmall prolongs the leases of units of one statement, all at once. args
// holds the statement's first parameters and the units' ids and tokens.
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
		n, err = s.db.run(ctx, shape{kind: renewHeld, rows: size, form: byPairs}, args...)
		return err
	})
	return n, err
}
