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

	"github.com/bedsql/bed/internal/entry"
	"github.com/google/uuid"
)

// Memory is a [Storage] within the process, for tests and development: its content ends with
// the process. It copies units on their way in and out.
type Memory struct {
	identity string

	mu sync.Mutex
	// units is nil after Close.
	units map[string]*Unit
	// ends holds the last states of removed units.
	ends map[string]entry.State
	// schemas maps data sources to the schemas of their receipts.
	schemas map[string]string
	// orders maps order keys to their units.
	orders map[string]*memoryOrder
}

// memoryOrder is the state of an order key; waiting holds the units behind the head, in
// their order.
type memoryOrder struct {
	last    int64
	head    string
	waiting []string
}

// drop erases the unit with this id, if it is there, and frees the units that wait for it.
func (m *Memory) drop(id string) {
	u := m.units[id]
	if u == nil {
		return
	}
	delete(m.units, id)
	for _, o := range u.Order {
		k := m.orders[o.Key]
		k.waiting = slices.DeleteFunc(k.waiting, func(other string) bool { return other == id })
		if k.head != id {
			continue
		}
		k.head = ""
		if len(k.waiting) > 0 {
			k.head, k.waiting = k.waiting[0], k.waiting[1:]
			if next := m.units[k.head]; next.Blocked && m.behind(next) == "" {
				next.Blocked, next.AtOnce, next.NextTry = false, true, time.Time{}
			}
		}
	}
}

// behind returns the id of the unit that u waits for.
func (m *Memory) behind(u *Unit) string {
	for _, o := range u.Order {
		if k := m.orders[o.Key]; slices.Contains(k.waiting, u.ID) {
			return k.head
		}
	}
	return ""
}

var _ Storage = (*Memory)(nil)

// NewMemory makes an empty store. It cannot keep entries of bedsql.WithTx, which are
// rows in the application's database. For tests of these [Open] the log in that SQLite file.
func NewMemory() *Memory {
	return &Memory{identity: uuid.NewString(), units: map[string]*Unit{}, schemas: map[string]string{}, ends: map[string]entry.State{}, orders: map[string]*memoryOrder{}}
}

// locked calls f with the store locked, unless it is closed or ctx is done.
func locked[T any](ctx context.Context, m *Memory, f func(now time.Time) (T, error)) (none T, err error) {
	if m == nil {
		return none, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.units == nil {
		return none, ErrClosed
	}
	return f(time.Now().Round(0).Truncate(time.Millisecond)) // as exact as a database's time columns
}

func (m *Memory) do(ctx context.Context, f func(now time.Time) error) error {
	_, err := locked(ctx, m, func(now time.Time) (any, error) { return nil, f(now) })
	return err
}

func leaseEnd(now time.Time, lease time.Duration) time.Time {
	return now.Add(lease.Truncate(time.Millisecond) + leaseSlack*time.Millisecond)
}

func leasedAt(u *Unit, now time.Time) bool {
	return u.Lease.Token != "" && u.NextTry.After(now) && !u.Blocked
}

// Add implements [Storage].
func (m *Memory) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	for _, u := range units {
		if err := validate(u, lease, entry.NewID()); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(lease)
	return m.do(ctx, func(now time.Time) error {
		for _, u := range units {
			u.Lease.Deadline, u.AddRepeated = deadline, false
			if m.units[u.ID] != nil {
				continue
			}
			u.Order = slices.Clone(u.Order)
			for i := range u.Order {
				o := &u.Order[i]
				k := m.orders[o.Key]
				if k == nil {
					k = &memoryOrder{}
					m.orders[o.Key] = k
				}
				k.last = max(k.last+1, now.UnixMicro())
				if o.Number = k.last; k.head == "" {
					k.head = u.ID
				} else {
					k.waiting = append(k.waiting, u.ID)
				}
			}
			u.Behind = m.behind(u)
			c := u.Clone()
			c.InDoubt, c.CreatedAt, c.NextTry = true, now, leaseEnd(now, lease)
			c.Tries, c.LastError, c.Parked, c.AtOnce, c.Unreadable = 0, "", false, false, nil
			c.Behind, c.Blocked = "", u.Behind != ""
			m.units[u.ID] = c
		}
		return nil
	})
}

// owned returns the stored unit if u's token owns it.
func (m *Memory) owned(u *Unit) *Unit {
	if u == nil || u.Lease.Token == "" || m.units[u.ID] == nil || m.units[u.ID].Lease.Token != u.Lease.Token {
		return nil
	}
	return m.units[u.ID]
}

// Remove implements [Storage].
func (m *Memory) Remove(ctx context.Context, units ...*Unit) error {
	return m.do(ctx, func(time.Time) error {
		var lost []*Unit
		for _, u := range units {
			if m.owned(u) == nil {
				lost = append(lost, u)
				continue
			}
			m.drop(u.ID)
			if u.Delivered {
				m.ends[u.ID] = cmp.Or(m.ends[u.ID], entry.StateDelivered)
			}
		}
		if len(lost) > 0 {
			return entry.LeaseLost("removing", lost...)
		}
		return nil
	})
}

// Renew implements [Storage].
func (m *Memory) Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error) {
	deadline := time.Now().Add(lease)
	return locked(ctx, m, func(now time.Time) (lost []*Unit, err error) {
		for _, u := range units {
			c := m.owned(u)
			if c == nil {
				lost = append(lost, u)
				continue
			}
			c.NextTry, c.InDoubt, c.AtOnce = leaseEnd(now, lease), true, false
			u.Lease.Deadline = deadline
		}
		return lost, nil
	})
}

// Locate implements [Storage].
func (m *Memory) Locate(ctx context.Context, u *Unit, place, session string) error {
	located := *u
	located.Place, located.Session = place, session
	if err := validate(&located, entry.MinLease, ""); err != nil {
		return err
	}
	return m.do(ctx, func(time.Time) error {
		c := m.owned(u)
		if c == nil {
			return entry.LeaseLost("locating", u)
		}
		c.Place, u.Place = place, place
		c.Session, u.Session = session, session
		if k := m.units[c.TransactionID]; c.Group() && k != nil && k.Undo != nil {
			k.Undo.Locate(c.ID, place, session)
		}
		return nil
	})
}

// Release implements [Storage].
func (m *Memory) Release(ctx context.Context, u *Unit, v entry.Verdict) error {
	return m.do(ctx, func(now time.Time) error {
		c := m.owned(u)
		if c == nil {
			return entry.LeaseLost("releasing", u)
		}
		c.Lease = entry.Lease{}
		c.NextTry = now.Add(time.Duration(entry.Millis(v.After)) * time.Millisecond)
		c.InDoubt, c.Parked = v.InDoubt, v.Park
		if v.CountTry {
			c.Tries++
		}
		c.ReadAt = now
		c.Contend(v)
		if v.DataSource != "" {
			c.DataSource, c.Tries = v.DataSource, 0
		}
		if v.Err != "" {
			c.LastError = errorText(v.Err)
		}
		return nil
	})
}

func byNextTry(a, b *Unit) int {
	return cmp.Or(a.NextTry.Compare(b.NextTry), strings.Compare(a.ID, b.ID))
}

// Claim implements [Storage].
func (m *Memory) Claim(ctx context.Context, r entry.ClaimRequest) ([]*Unit, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(r.Lease)
	return locked(ctx, m, func(now time.Time) ([]*Unit, error) {
		var due []*Unit
		for _, c := range m.units {
			if c.DataSource == r.DataSource && !c.Parked && !c.Blocked && !c.NextTry.After(now) &&
				(c.AtOnce || c.CreatedAt.After(now) || !c.CreatedAt.After(now.Add(-r.MinAge))) &&
				(c.AtOnce || r.After == nil || byNextTry(c, r.After) > 0) {
				due = append(due, c)
			}
		}
		slices.SortFunc(due, byNextTry)
		due = due[:min(len(due), r.Limit)]
		if r.Pick != nil && len(due) > 0 {
			due = r.Pick(due)
		}
		token := entry.NewID()
		out := make([]*Unit, len(due))
		for i, c := range due {
			c.Lease.Token = token
			atOnce := c.AtOnce
			c.NextTry, c.AtOnce = leaseEnd(now, r.Lease), false
			out[i] = c.Clone()
			out[i].AtOnce = atOnce
			out[i].Lease.Deadline = deadline
			out[i].Leased, out[i].ReadAt = true, now
			c.InDoubt = true
		}
		return out, nil
	})
}

// DataSources implements [Storage]. It looks at every unit.
func (m *Memory) DataSources(ctx context.Context) ([]string, error) {
	return locked(ctx, m, func(time.Time) ([]string, error) {
		seen := map[string]bool{}
		for _, c := range m.units {
			if !c.Parked {
				seen[c.DataSource] = true
			}
		}
		return slices.Sorted(maps.Keys(seen)), nil
	})
}

// shown copies a stored unit for a caller that does not own it.
func (m *Memory) shown(c *Unit, now time.Time) *Unit {
	u := c.Clone()
	u.Leased, u.ReadAt = leasedAt(c, now), now
	u.Lease = entry.Lease{}
	u.Behind = m.behind(c)
	for _, o := range c.Order {
		if k := m.orders[o.Key]; k.head == c.ID {
			u.Blocks += len(k.waiting)
		}
	}
	if u.AtOnce {
		u.NextTry = now
	}
	return u
}

// List implements [Storage].
func (m *Memory) List(ctx context.Context, f Filter) ([]*Unit, error) {
	return locked(ctx, m, func(now time.Time) ([]*Unit, error) {
		var units []*Unit
		for _, id := range slices.Sorted(maps.Keys(m.units)) {
			c := m.units[id]
			if f.Parked && !c.Parked || f.DataSource != "" && c.DataSource != f.DataSource ||
				f.OlderThan > 0 && c.CreatedAt.After(now.Add(-f.OlderThan)) || f.After != "" && id <= entry.HeadID(f.After) || len(units) == f.limit() {
				continue
			}
			units = append(units, m.shown(c, now))
		}
		return units, nil
	})
}

// find returns the stored unit that owns the row id.
func (m *Memory) find(id string) (*Unit, error) {
	if c := m.units[entry.HeadID(id)]; c != nil && entry.HasRow(id, len(c.Statements)) {
		return c, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
}

// Get implements [Storage].
func (m *Memory) Get(ctx context.Context, id string) (*Unit, error) {
	return locked(ctx, m, func(now time.Time) (*Unit, error) {
		c, err := m.find(id)
		if err != nil {
			return nil, err
		}
		return m.shown(c, now), nil
	})
}

// Complete implements [Storage].
func (m *Memory) Complete(ctx context.Context, k *Unit) error {
	return m.do(ctx, func(time.Time) error {
		c := m.units[k.ID]
		if c != nil && c.Compensating() || c == nil && slices.ContainsFunc(k.Undo.Units(), func(id string) bool { return m.ends[id] == entry.StateDiscarded }) {
			return fmt.Errorf("%w (%s)", ErrCompensated, k.ID)
		}
		if c == nil {
			return fmt.Errorf("%w: group %s", ErrNotFound, k.ID)
		}
		m.ends[k.ID] = cmp.Or(m.ends[k.ID], entry.StateDelivered)
		for _, id := range k.Undo.Units() {
			m.drop(id)
		}
		delete(m.units, k.ID)
		return nil
	})
}

// Compensate implements [Storage].
func (m *Memory) Compensate(ctx context.Context, id string, lease time.Duration, cause string) (*Unit, error) {
	deadline := time.Now().Add(lease)
	return locked(ctx, m, func(now time.Time) (*Unit, error) {
		k := m.units[id]
		switch {
		case k == nil || k.Undo == nil:
			return nil, noCompensation(id, "memory")
		case k.Compensating() && leasedAt(k, now):
			return nil, fmt.Errorf("%w: %s", ErrLeased, id)
		case !k.Compensating():
			k.Start(cause, func(id string) bool { return m.units[id] != nil })
		}
		for _, unit := range k.Undo.Units() {
			m.drop(unit)
			m.ends[unit] = entry.StateDiscarded
		}
		m.ends[id] = entry.StateDiscarded
		k.Lease, k.AtOnce, k.NextTry = entry.Lease{}, true, time.Time{}
		k.Parked, k.Tries, k.InDoubt = false, 0, true
		if lease > 0 {
			k.Lease.Token, k.AtOnce, k.NextTry = entry.NewID(), false, leaseEnd(now, lease)
		}
		u := m.shown(k, now)
		if u.Lease.Token = k.Lease.Token; lease > 0 {
			u.Lease.Deadline = deadline
		}
		return u, nil
	})
}

// Retry implements [Storage].
func (m *Memory) Retry(ctx context.Context, id string) error {
	return m.decide(ctx, id, func(c *Unit) error {
		c.Lease = entry.Lease{}
		c.Parked, c.Tries, c.AtOnce, c.NextTry, c.ContendedFrom = false, 0, true, time.Time{}, 0
		if m.behind(c) != "" {
			c.Blocked, c.AtOnce = true, false
		}
		return nil
	})
}

// Discard implements [Storage].
func (m *Memory) Discard(ctx context.Context, id string) error {
	return m.decide(ctx, id, func(c *Unit) error {
		if c.InGroup() && m.units[c.TransactionID] != nil {
			return fmt.Errorf("%w: entry %s of group %s", ErrGroup, c.ID, c.TransactionID)
		}
		m.drop(c.ID)
		m.ends[c.ID] = entry.StateDiscarded
		return nil
	})
}

// decide calls f for a unit that is not being delivered.
func (m *Memory) decide(ctx context.Context, id string, f func(*Unit) error) error {
	return m.do(ctx, func(now time.Time) error {
		c, err := m.find(id)
		if err != nil {
			return err
		}
		if leasedAt(c, now) {
			return fmt.Errorf("%w: %s", ErrLeased, c.ID)
		}
		return f(c)
	})
}

// Stats implements [Storage].
func (m *Memory) Stats(ctx context.Context) ([]Stats, error) {
	return locked(ctx, m, func(now time.Time) ([]Stats, error) {
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
	})
}

// States implements [Storage].
func (m *Memory) States(ctx context.Context, ids ...string) ([]entry.State, error) {
	return locked(ctx, m, func(time.Time) ([]entry.State, error) {
		states := make([]entry.State, len(ids))
		for i, id := range ids {
			switch u := m.units[entry.HeadID(id)]; {
			case u != nil && u.Unstarted() && slices.ContainsFunc(u.Undo.Units(), func(id string) bool { return m.units[id] != nil && m.units[id].Parked }):
				states[i] = entry.StateParked
			case u != nil:
				states[i] = stateOf(u)
			default:
				states[i] = cmp.Or(m.ends[entry.HeadID(id)], entry.StateUnknown)
			}
		}
		return states, nil
	})
}

// Missing implements [Storage].
func (m *Memory) Missing(ctx context.Context, ids []string) ([]string, error) {
	return locked(ctx, m, func(time.Time) ([]string, error) {
		receipts := map[string]bool{}
		for _, u := range m.units {
			receipts[u.Receipt] = receipts[u.Receipt] || u.Fingerprint != ""
		}
		var missing []string
		for _, id := range ids {
			k := m.orders[id]
			if m.units[entry.HeadID(id)] == nil && !receipts[id] && (k == nil || k.head == "") {
				missing = append(missing, id)
			}
		}
		return missing, nil
	})
}

// Identity implements [Storage]. Each store has its own identity.
func (m *Memory) Identity() string {
	if m == nil {
		return ""
	}
	return m.identity
}

// ReceiptSchema implements [Storage].
func (m *Memory) ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error) {
	err = m.do(ctx, func(time.Time) error {
		schema, known = m.schemas[dataSource]
		return nil
	})
	return schema, known, err
}

// SetReceiptSchema implements [Storage].
func (m *Memory) SetReceiptSchema(ctx context.Context, dataSource, schema string) error {
	if err := validateReceiptSchema(dataSource, schema); err != nil {
		return err
	}
	return m.do(ctx, func(time.Time) error {
		if _, known := m.schemas[dataSource]; !known {
			m.schemas[dataSource] = schema
		}
		return nil
	})
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
