package txlog

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Memory is a [Storage] within the process, for tests and development: what it
// holds is gone with it. Units are copied on their way in and out.
type Memory struct {
	identity string

	mu    sync.Mutex
	units map[string]*Unit
	// schemas are those of the data sources' receipts.
	schemas map[string]string
	closed  bool
}

var _ Storage = (*Memory)(nil)

// NewMemory makes an empty store.
func NewMemory() *Memory {
	return &Memory{identity: uuid.NewString(), units: map[string]*Unit{}, schemas: map[string]string{}}
}

// enter locks the store, unless it is closed or ctx is done.
func (m *Memory) enter(ctx context.Context) error {
	if m == nil {
		return ErrClosed
	}
	m.mu.Lock()
	if m.closed || m.units == nil {
		m.mu.Unlock()
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		m.mu.Unlock()
		return err
	}
	return nil
}

// memoryNow has the resolution that the columns of a database have.
func memoryNow() time.Time { return time.Now().Round(0).Truncate(time.Millisecond) }

func leaseEnd(now time.Time, lease time.Duration) time.Time {
	return now.Add(time.Duration(leaseMillis(lease)) * time.Millisecond)
}

func leasedAt(u *Unit, now time.Time) bool { return u.Lease.Token != "" && u.NextTry.After(now) }

// Add implements [Storage].
func (m *Memory) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := validateLease(lease); err != nil {
		return err
	}
	for _, u := range units {
		if err := validate(u, NewID()); err != nil {
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
	if u == nil {
		return nil
	}
	if c := m.units[u.ID]; c != nil && u.Lease.Token != "" && c.Lease.Token == u.Lease.Token {
		return c
	}
	return nil
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
		return leaseLost("removing", lost)
	}
	return nil
}

// Renew implements [Storage].
func (m *Memory) Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error) {
	if err := validateLease(lease); err != nil {
		return nil, err
	}
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
		c.NextTry = leaseEnd(now, lease)
		u.Lease.Deadline = deadline
	}
	return lost, nil
}

// Locate implements [Storage].
func (m *Memory) Locate(ctx context.Context, u *Unit, place string) error {
	if err := validatePlace(u, place); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c := m.owned(u)
	if c == nil {
		return leaseLost("locating", []*Unit{u})
	}
	c.Place, u.Place = place, place
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
		return leaseLost("releasing", []*Unit{u})
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
	if err := validateClaim(&r); err != nil {
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
	sort.Slice(due, func(i, j int) bool {
		if !due[i].NextTry.Equal(due[j].NextTry) {
			return due[i].NextTry.Before(due[j].NextTry)
		}
		return due[i].ID < due[j].ID
	})
	if len(due) > r.Limit {
		due = due[:r.Limit]
	}
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
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return names, nil
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
	var ids []string
	for id, c := range m.units {
		if f.Parked && !c.Parked || f.DataSource != "" && c.DataSource != f.DataSource ||
			f.OlderThan > 0 && c.CreatedAt.After(now.Add(-f.OlderThan)) || id <= headID(f.After) && f.After != "" {
			continue
		}
		ids = append(ids, id)
	}
	sort.Strings(ids)
	if limit := f.limit(); len(ids) > limit {
		ids = ids[:limit]
	}
	units := make([]*Unit, len(ids))
	for i, id := range ids {
		units[i] = shown(m.units[id], now)
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

// idle gives the stored unit if nobody is delivering it.
func (m *Memory) idle(id string) (*Unit, error) {
	c, err := m.find(id)
	if err == nil && leasedAt(c, memoryNow()) {
		err = fmt.Errorf("%w: %s", ErrLeased, c.ID)
	}
	return c, err
}

// Retry implements [Storage].
func (m *Memory) Retry(ctx context.Context, id string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c, err := m.idle(id)
	if err != nil {
		return err
	}
	c.Lease = Lease{}
	c.Parked, c.Tries, c.AtOnce, c.NextTry = false, 0, true, time.Time{}
	return nil
}

// Discard implements [Storage].
func (m *Memory) Discard(ctx context.Context, id string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c, err := m.idle(id)
	if err != nil {
		return err
	}
	delete(m.units, c.ID)
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
	for _, s := range by {
		all = append(all, *s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].DataSource < all[j].DataSource })
	return all, nil
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
	m.closed = true
	return nil
}
