package asyncjob

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// session reaches a data source with one set of settings.
type session struct {
	target delivery.Target
	pool   *sql.DB
	// kept configures the writing of receipts in it.
	kept attempt.Receipts
	// ensured is set once the table of receipts is known to exist.
	ensured atomic.Bool
	// place is the place of that table; nil before its first use.
	place atomic.Pointer[string]
	// users is the number of deliveries that run on it.
	users int
}

func newSession(t delivery.Target, r attempt.Receipts, concurrency int) *session {
	r.Schema = t.ReceiptSchema
	s := &session{target: t, pool: sql.OpenDB(t.Greeted()), kept: r}
	s.pool.SetMaxOpenConns(concurrency)
	s.pool.SetMaxIdleConns(concurrency)
	// A target is idle most of the time, so its connections need not be held.
	s.pool.SetConnMaxIdleTime(time.Minute)
	return s
}

// maxSessions is the number of additional sets of settings for which a data source keeps a
// pool.
const maxSessions = 8

// placeError reports a unit's receipt in another place than the job's: an applied unit would
// be applied again.
type placeError struct{ log, job string }

func (e *placeError) Error() string {
	job := "finds it in " + e.job
	if e.job == "" {
		job = "finds none"
	}
	return fmt.Sprintf("not delivered: the application's receipts are in the table bed_receipt in %s, but the job's session %s; "+
		"give the job a DSN and an account that lead to the same", e.log, job)
}

// receipts finds the table of receipts for u, or creates it if no place is known. From then
// on the log holds the place: another job that looks elsewhere would not see this job's
// deliveries.
func (s *session) receipts(ctx context.Context, conn driver.Conn, log txlog.Storage, u *txlog.Unit) error {
	d := s.target.Dialect
	if u.Place != "" { // asked for before a table is created
		place, err := s.find(ctx, conn)
		if err != nil {
			return err
		}
		if u.Place != place {
			s.place.Store(nil) // an operator may act
			return &placeError{u.Place, place}
		}
	}
	if !s.ensured.Load() {
		if err := attempt.CheckSchema(ctx, d, conn, log, u.DataSource, s.kept); err != nil {
			return err
		}
		if err := attempt.EnsureReceipts(ctx, d, conn, s.kept); err != nil {
			return err
		}
		s.ensured.Store(true)
	}
	if u.Place != "" || u.Undo != nil { // of a part whose place was never known nothing is applied
		return nil
	}
	place, err := s.find(ctx, conn)
	if err != nil || place == "" {
		return err
	}
	if err := log.Locate(ctx, u, place, u.Session); err != nil {
		return attempt.Certain(fmt.Errorf("not delivered: could not record in the log where the receipt will be: %w", err), dialect.Retryable)
	}
	return nil
}

// find returns the place of the table of receipts, empty before it exists.
func (s *session) find(ctx context.Context, conn driver.Conn) (string, error) {
	if known := s.place.Load(); known != nil {
		return *known, nil
	}
	found, err := attempt.ReceiptPlace(ctx, s.target.Dialect, conn, s.kept)
	if err == nil && (found != "" || s.ensured.Load()) {
		s.place.Store(&found)
	}
	return found, err
}

// sessions holds those with other settings than the job's DSN, the last used one at the end.
type sessions struct {
	mu   sync.Mutex
	list []*session
	// closed means that no session is kept after its use.
	closed bool
}

// session returns the session for delivering u, and a function that ends its use. The error
// explains why the job has none.
func (s *source) session(u *txlog.Unit) (*session, func(), error) {
	if err := s.own.target.SameAccount(u); err != nil {
		return nil, nil, err
	}
	if u.Session == "" && u.Settings == s.own.target.Settings {
		return s.own, func() {}, nil
	}
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	var found *session
	for i, other := range s.others.list {
		if other.target.Settings == u.Settings && other.target.Session == u.Session {
			found = other
			s.others.list = append(s.others.list[:i:i], s.others.list[i+1:]...)
			break
		}
	}
	if found == nil {
		t, err := s.own.target.In(u.Settings, u.Session)
		if err != nil {
			// It would have another meaning with the job's settings.
			return nil, nil, fmt.Errorf("not delivered: the entry was written with the settings %q, but the job's DSN of data source %s has %q, "+
				"and the entry's cannot be used: %w; give the job a DSN with the same settings", u.Settings, s.name, s.own.target.Settings, err)
		}
		found = newSession(t, s.receipts, s.concurrency)
	}
	found.users++
	s.others.list = append(s.others.list, found)
	s.others.trim()
	return found, func() { s.others.leave(found) }, nil
}

// accepts returns nil if u can be delivered, else the reason.
func (s *source) accepts(u *txlog.Unit) error {
	_, leave, err := s.session(u)
	if err == nil {
		leave()
	}
	return err
}

func (o *sessions) leave(s *session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.users--
	o.trim()
}

// trim closes the least recently used sessions that are not in use.
func (o *sessions) trim() {
	most := maxSessions
	if o.closed {
		most = 0
	}
	for i := 0; i < len(o.list) && len(o.list) > most; {
		if o.list[i].users > 0 {
			i++
			continue
		}
		_ = o.list[i].pool.Close()
		o.list = append(o.list[:i:i], o.list[i+1:]...)
	}
}

// close closes all of them, those in use after their use.
func (o *sessions) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.trim()
}
