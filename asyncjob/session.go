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
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// session is a data source as it is reached with one set of settings.
type session struct {
	target delivery.Target
	pool   *sql.DB
	// kept says how receipts are written in it.
	kept attempt.Receipts
	// ensured: the table of receipts is there.
	ensured atomic.Bool
	// place is where; nil until somebody asked.
	place atomic.Pointer[string]
	// users are the deliveries that run on it.
	users int
}

func newSession(t delivery.Target, r attempt.Receipts, concurrency int) *session {
	r.Schema = t.ReceiptSchema
	s := &session{target: t, pool: sql.OpenDB(t.Greeted()), kept: r}
	s.pool.SetMaxOpenConns(concurrency)
	s.pool.SetMaxIdleConns(concurrency)
	// A target is idle most of the time: its connections need not be held.
	s.pool.SetConnMaxIdleTime(time.Minute)
	return s
}

// maxSessions is for how many sets of settings besides its own a data source
// keeps a pool.
const maxSessions = 8

// placeError says that a unit's receipt is elsewhere than where the job would
// look for it: what was applied would be applied again.
type placeError struct{ log, job string }

func (e *placeError) Error() string {
	job := "finds it in " + e.job
	if e.job == "" {
		job = "finds none"
	}
	return fmt.Sprintf("not delivered: the application's receipts are in the table bed_receipt in %s, but the job's session %s; "+
		"give the job a DSN and an account that lead to the same", e.log, job)
}

// receipts finds the table of receipts for u, or creates it where none is known.
// Where that is stands in the log from then on: another job that looks elsewhere
// would not see what this one applies.
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
		return attempt.Certain(fmt.Errorf("not delivered: could not record in the log where the receipt will be: %w", err), delivery.Retryable)
	}
	return nil
}

// find gives the place of the table of receipts, empty while there is none.
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

// sessions are those with other settings than the job's DSN has, the one that
// was used last at the end.
type sessions struct {
	mu   sync.Mutex
	list []*session
	// closed: none is kept once nobody uses it.
	closed bool
}

// session gives the session to deliver u in, and what ends its use. The error
// says why the job has none.
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
			// It would mean something else where the job would run it.
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

// accepts says why u cannot be delivered; nil if it can.
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

// trim closes those that were used the longest ago and are not in use.
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

// close closes all of them, those in use once they are not.
func (o *sessions) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.trim()
}
