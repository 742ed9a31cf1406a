package txlog

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Memory is a [Storage] within the process, for tests and development: what it
// holds is gone with it. Units are copied on their way in and out.
type Memory struct {
	identity string

	mu sync.Mutex
	// units is nil once it is closed.
	units map[string]*Unit
	// discarded are the ids of units that were discarded.
	discarded map[string]bool
	// schemas are those of the data sources' receipts.
	schemas map[string]string
}

var _ Storage = (*Memory)(nil)

// NewMemory makes an empty store.
func NewMemory() *Memory {
	return &Memory{identity: uuid.NewString(), units: map[string]*Unit{}, schemas: map[string]string{}, discarded: map[string]bool{}}
}

// enter locks the store, unless it is closed or ctx is done.
func (m *Memory) enter(ctx context.Context) error {
	if m == nil {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if m.units == nil {
		m.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// memoryNow has the resolution that the columns of a database have.
func memoryNow() time.Time { return time.Now().Round(0).Truncate(time.Millisecond) }

func leaseEnd(now time.Time, lease time.Duration) time.Time {
	return now.Add(lease.Truncate(time.Millisecond) + leaseSlack*time.Millisecond)
}

func leasedAt(u *Unit, now time.Time) bool { return u.Lease.Token != "" && u.NextTry.After(now) }

// Add implements [Storage].
func (m *Memory) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	for _, u := range units {
		if err := u.validate(lease, NewID()); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(lease)
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	now := memoryNow()
	for _, u := range units {
		u.Lease.Deadline, u.AddRepeated = deadline, false
		if m.units[u.ID] != nil {
			continue
		}
		c := u.clone()
		c.InDoubt, c.CreatedAt, c.NextTry = true, now, leaseEnd(now, lease)
		c.Tries, c.LastError, c.Parked, c.AtOnce, c.Unreadable = 0, "", false, false, nil
		m.units[u.ID] = c
	}
	return nil
}

// owned gives the stored unit if u's token owns it.
func (m *Memory) owned(u *Unit) *Unit {
	if u == nil || u.Lease.Token == "" || m.units[u.ID] == nil || m.units[u.ID].Lease.Token != u.Lease.Token {
		return nil
	}
	return m.units[u.ID]
}

// Remove implements [Storage].
func (m *Memory) Remove(ctx context.Context, units ...*Unit) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	var lost []*Unit
	for _, u := range units {
		if m.owned(u) == nil {
			lost = append(lost, u)
			continue
		}
		delete(m.units, u.ID)
	}
	if len(lost) > 0 {
		return leaseLost("removing", lost...)
	}
	return nil
}

// Renew implements [Storage].
func (m *Memory) Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error) {
	deadline := time.Now().Add(lease)
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	now := memoryNow()
	for _, u := range units {
		c := m.owned(u)
		if c == nil {
			lost = append(lost, u)
			continue
		}
		c.NextTry, c.InDoubt = leaseEnd(now, lease), true
		u.Lease.Deadline = deadline
	}
	return lost, nil
}

// Locate implements [Storage].
func (m *Memory) Locate(ctx context.Context, u *Unit, place, session string) error {
	located := *u
	located.Place, located.Session = place, session
	if err := located.validate(minLease, ""); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c := m.owned(u)
	if c == nil {
		return leaseLost("locating", u)
	}
	c.Place, u.Place = place, place
	c.Session, u.Session = session, session
	return nil
}

// Release implements [Storage].
func (m *Memory) Release(ctx context.Context, u *Unit, v Verdict) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c := m.owned(u)
	if c == nil {
		return leaseLost("releasing", u)
	}
	c.Lease = Lease{}
	c.NextTry = memoryNow().Add(time.Duration(millis(v.After)) * time.Millisecond)
	c.InDoubt, c.Parked = v.InDoubt, v.Park
	if v.CountTry {
		c.Tries++
	}
	if v.Err != "" {
		c.LastError = errorText(v.Err)
	}
	return nil
}

// Claim implements [Storage].
func (m *Memory) Claim(ctx context.Context, r ClaimRequest) ([]*Unit, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(r.Lease)
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	now := memoryNow()
	var due []*Unit
	for _, c := range m.units {
		if c.DataSource == r.DataSource && !c.Parked && !c.NextTry.After(now) &&
			(c.AtOnce || c.CreatedAt.After(now) || !c.CreatedAt.After(now.Add(-r.MinAge))) {
			due = append(due, c)
		}
	}
	slices.SortFunc(due, func(a, b *Unit) int {
		return cmp.Or(a.NextTry.Compare(b.NextTry), strings.Compare(a.ID, b.ID))
	})
	due = due[:min(len(due), r.Limit)]
	token := NewID()
	out := make([]*Unit, len(due))
	for i, c := range due {
		c.Lease.Token = token
		c.NextTry, c.AtOnce = leaseEnd(now, r.Lease), false
		out[i] = c.clone()
		out[i].Lease.Deadline = deadline
		out[i].Leased, out[i].ReadAt = true, now
		c.InDoubt = true
	}
	return out, nil
}

// DataSources implements [Storage]. In memory it looks at every unit.
func (m *Memory) DataSources(ctx context.Context) ([]string, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range m.units {
		if !c.Parked {
			seen[c.DataSource] = true
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// shown copies a stored unit for somebody who does not own it.
func shown(c *Unit, now time.Time) *Unit {
	u := c.clone()
	u.Leased, u.ReadAt = leasedAt(c, now), now
	u.Lease = Lease{}
	if u.AtOnce {
		u.NextTry = now
	}
	return u
}

// List implements [Storage].
func (m *Memory) List(ctx context.Context, f Filter) ([]*Unit, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	now := memoryNow()
	var units []*Unit
	for _, id := range slices.Sorted(maps.Keys(m.units)) {
		c := m.units[id]
		if f.Parked && !c.Parked || f.DataSource != "" && c.DataSource != f.DataSource ||
			f.OlderThan > 0 && c.CreatedAt.After(now.Add(-f.OlderThan)) || f.After != "" && id <= headID(f.After) || len(units) == f.limit() {
			continue
		}
		units = append(units, shown(c, now))
	}
	return units, nil
}

// find gives the stored unit to which the row id belongs.
func (m *Memory) find(id string) (*Unit, error) {
	if c := m.units[headID(id)]; c != nil && hasRow(id, len(c.Statements)) {
		return c, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
}

// Get implements [Storage].
func (m *Memory) Get(ctx context.Context, id string) (*Unit, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	c, err := m.find(id)
	if err != nil {
		return nil, err
	}
	return shown(c, memoryNow()), nil
}

// Retry implements [Storage].
func (m *Memory) Retry(ctx context.Context, id string) error {
	return m.decide(ctx, id, func(c *Unit) {
		c.Lease = Lease{}
		c.Parked, c.Tries, c.AtOnce, c.NextTry = false, 0, true, time.Time{}
	})
}

// Discard implements [Storage].
func (m *Memory) Discard(ctx context.Context, id string) error {
	return m.decide(ctx, id, func(c *Unit) {
		delete(m.units, c.ID)
		m.discarded[c.ID] = true
	})
}

// decide calls f for a unit that nobody is delivering.
func (m *Memory) decide(ctx context.Context, id string, f func(*Unit)) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c, err := m.find(id)
	if err != nil {
		return err
	}
	if leasedAt(c, memoryNow()) {
		return fmt.Errorf("%w: %s", ErrLeased, c.ID)
	}
	f(c)
	return nil
}

// Stats implements [Storage].
func (m *Memory) Stats(ctx context.Context) ([]Stats, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	now := memoryNow()
	by := map[string]*Stats{}
	for _, c := range m.units {
		s := by[c.DataSource]
		if s == nil {
			s = &Stats{DataSource: c.DataSource, Oldest: c.CreatedAt}
			by[c.DataSource] = s
		}
		if c.CreatedAt.Before(s.Oldest) {
			s.Oldest = c.CreatedAt
		}
		switch {
		case c.Parked:
			s.Parked++
		case leasedAt(c, now):
			s.Leased++
		default:
			s.Waiting++
		}
	}
	all := make([]Stats, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, *by[name])
	}
	return all, nil
}

// States implements [Storage].
func (m *Memory) States(ctx context.Context, ids ...string) ([]State, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	states := make([]State, len(ids))
	for i, id := range ids {
		switch u := m.units[headID(id)]; {
		case u != nil:
			states[i] = stateOf(u)
		case m.discarded[headID(id)]:
			states[i] = StateDiscarded
		default:
			states[i] = StateDelivered
		}
	}
	return states, nil
}

// Missing implements [Storage].
func (m *Memory) Missing(ctx context.Context, ids []string) ([]string, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	receipts := map[string]bool{}
	for _, u := range m.units {
		receipts[u.Receipt] = receipts[u.Receipt] || u.Fingerprint != ""
	}
	var missing []string
	for _, id := range ids {
		if m.units[headID(id)] == nil && !receipts[id] {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// Identity implements [Storage]. Each store has one of its own.
func (m *Memory) Identity() string {
	if m == nil {
		return ""
	}
	return m.identity
}

// ReceiptSchema implements [Storage].
func (m *Memory) ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error) {
	if err := m.enter(ctx); err != nil {
		return "", false, err
	}
	defer m.mu.Unlock()
	schema, known = m.schemas[dataSource]
	return schema, known, nil
}

// SetReceiptSchema implements [Storage].
func (m *Memory) SetReceiptSchema(ctx context.Context, dataSource, schema string) error {
	if err := validateReceiptSchema(dataSource, schema); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if _, known := m.schemas[dataSource]; !known {
		m.schemas[dataSource] = schema
	}
	return nil
}

// Close implements [Storage].
func (m *Memory) Close() error {
	if m == nil {
		return ErrClosed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.units = nil
	return nil
}
