package asyncjob

import (
	"io"
	"sync"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

// session reaches a data source with one set of settings, except for the values of the
// application's own, which Source.Follow sets.
type session struct {
	*target.Source
	pool *target.Pool
	// shared means that its connector belongs to the data source's own session.
	shared bool
	// users is the number of deliveries that run on it.
	users int
}

func newSession(t delivery.Target, s *source) *session {
	in := target.New(t, s.receipts, s.storage, 0)
	return &session{Source: in, pool: in.Greeted(s.concurrency)}
}

func (s *session) close() error {
	err := s.pool.Close()
	if c, ok := s.Connector.(io.Closer); ok && !s.shared {
		return c.Close()
	}
	return err
}

// maxSessions is the number of additional sets of settings for which a data source keeps a
// pool.
const maxSessions = 8

// sessions holds those with other settings than the job's DSN, the last used one at the end.
type sessions struct {
	mu   sync.Mutex
	list []*session
	// closed means that no session is kept after its use.
	closed bool
}

// session returns the session for delivering u, and a function that ends its use. The error
// explains why the job has none.
func (s *source) session(u *entry.Unit) (*session, func(), error) {
	if err := target.SameAccount(&s.own.Target, u); err != nil {
		return nil, nil, err
	}
	if u.Session == "" && u.Settings == s.own.Settings {
		return s.own, func() {}, nil
	}
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	var found *session
	for i, other := range s.others.list {
		if other.Settings == u.Settings && (other.Session == u.Session || target.Masked(other.Session) == target.Masked(u.Session)) {
			found = other
			s.others.list = append(s.others.list[:i:i], s.others.list[i+1:]...)
			break
		}
	}
	if found == nil {
		t, err := target.In(s.own.Target, u)
		if err != nil {
			return nil, nil, err
		}
		found = newSession(t, s)
		found.shared = u.Settings == s.own.Settings
	}
	found.users++
	s.others.list = append(s.others.list, found)
	s.others.trim()
	return found, func() { s.others.leave(found) }, nil
}

// accepts returns nil if u can be delivered, else the reason.
func (s *source) accepts(u *entry.Unit) error {
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
		_ = o.list[i].close()
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
