package txlog

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

// Joining gives a test access to the shared writes of callers.
type Joining struct {
	q *groupcommit.Queue[content]
	// kind is the kind of request, in a queue for several kinds.
	kind uint8
}

// Adding returns the joined Adds.
func (s *SQLStorage) Adding() Joining { return Joining{s.queue, adding} }

// Removing returns the joined removals.
func (s *SQLStorage) Removing() Joining { return Joining{s.queue, removing} }

// Hold takes the place of a write in flight until release is called.
func (g Joining) Hold() (release func()) { return g.q.Hold() }

// Await waits until that many requests are queued.
func (g Joining) Await(t testing.TB, queued int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		there := g.q.State().Queued[g.kind]
		if there == queued {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are queued, want %d", there, queued)
		}
	}
}

// Closed reports whether no more is taken.
func (g Joining) Closed() bool { return g.q.State().Closed }

// Limit is how many writes are worthwhile now.
func (g Joining) Limit() int { return g.q.State().Limit }

// RoundTrip is the measured one; 0 while it is not known.
func (s *SQLStorage) RoundTrip() time.Duration { return s.queue.State().RoundTrip }

// NotReturning makes the log learn what it removed as on MySQL. There DELETE does not return rows.
func (s *SQLStorage) NotReturning() { s.writer.returning = false }

// ParamsColumn returns the column parameters of a statement.
func ParamsColumn(params string, prepared bool) string {
	_, column := encode(&entry.Statement{Params: params, Prepared: prepared})
	return column
}

// ReadParamsColumn reads it.
func ReadParamsColumn(column string) (params string, prepared bool) {
	r := reading{unit: new(Unit)}
	r.readParams(sql.NullString{String: column, Valid: true})
	return r.first.Params, r.first.Prepared
}

// Unlocked has claims find due rows without locking them.
func (s *SQLStorage) Unlocked() { s.db.unlocked = true }

// AddAgain repeats the write of a unit with this end of its lease.
func (s *SQLStorage) AddAgain(ctx context.Context, u *Unit, deadline time.Time) error {
	r, err := s.writer.addition(time.Hour, s.token, []*Unit{u})
	if err != nil {
		return err
	}
	r.End = deadline
	return s.writer.write(ctx, []*request{r}, true)
}

// ForgetPacketLimit removes the known limit, as if the server's were lowered after Open.
func (s *SQLStorage) ForgetPacketLimit() { s.writer.maxPacket = 0 }
