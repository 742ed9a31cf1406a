package asyncjob

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/txlog"
)

// erasable reports whether no attempt can need the receipt of a delivered unit
// any more: every attempt ended with a definite answer to an owner that never
// lost its lease.
func erasable(u *txlog.Unit, found bool) bool {
	return u.Receipt != "" && u.Fingerprint == "" && !u.InDoubt && !found
}

// erase deletes receipts of units whose logs are gone. What cannot be deleted
// stays for its retention.
func (s *source) erase(ctx context.Context, timeout time.Duration, ids []string) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := s.onConn(ctx, func(conn driver.Conn) error { return s.own.target.Dialect.EraseReceipts(ctx, conn, ids) })
	if err != nil {
		s.log.WithField("error", s.own.target.Dialect.Describe(err)).Info("receipts could not be erased, they stay for their retention")
	}
}

const (
	// purgeFor is how much of a round a purge takes, and no page is begun after
	// it: pending writes should not wait for it. It goes on in the next round.
	purgeFor = 2 * time.Second
	// purgeLimit ends a purge whose page is held up, by a lock of somebody else.
	purgeLimit = 10 * time.Second
)

// purgeDue reports whether receipts should be purged now, and from where on, and
// takes the turn.
func (s *source) purgeDue(interval time.Duration) (due bool, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down || !s.purging && !s.purged.IsZero() && time.Since(s.purged) < interval {
		return false, ""
	}
	s.purging, s.purged = false, time.Now()
	return true, s.purgedTo
}

// purgeEnded keeps where the purge has come to. After an error it goes on behind
// the page that failed, which comes again once the others had their turn, but
// not before the interval is over.
func (s *source) purgeEnded(to string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purgedTo, s.purging = to, to != "" && err == nil
}

// purgeAll purges the targets whose turn has come, behind the deliveries: what
// is known to be down then is left alone.
func (r *round) purgeAll() {
	var all sync.WaitGroup
	for _, s := range r.job.sources {
		if r.ctx.Err() != nil {
			break
		}
		if due, from := s.purgeDue(r.job.cfg.PurgeInterval); due {
			all.Go(func() { r.job.guard(func() { r.purge(s, from) }) })
		}
	}
	all.Wait()
}

// purge erases receipts of this log whose retention is over and whose units are
// not in the log any more.
func (r *round) purge(s *source, from string) {
	ctx, cancel := context.WithTimeout(r.ctx, min(purgeLimit, r.job.cfg.DeliveryTimeout))
	defer cancel()
	erased, end := 0, time.Now().Add(s.purgeFor)
	err := s.onConn(ctx, func(conn driver.Conn) error {
		for {
			next, n, err := s.own.target.Dialect.PurgeReceipts(ctx, conn, s.receipts, from, r.job.storage.Missing)
			erased, from = erased+n, next
			if err != nil || next == "" || time.Now().After(end) {
				return err
			}
		}
	})
	s.purgeEnded(from, err)
	switch {
	case err != nil:
		// As a rule there is no such table, because no unit left a receipt there.
		level := logrus.DebugLevel
		if s.own.ensured.Load() && r.ctx.Err() == nil {
			level = logrus.WarnLevel
		}
		s.log.WithField("error", s.own.target.Dialect.Describe(err)).Log(level, "receipts could not be purged")
	case erased > 0:
		s.log.WithField("receipts", erased).Info("receipts whose retention was over are purged")
	}
}

// onConn runs f on a bare connection of the pool, which is dropped after an
// error: it is not known what f left behind on it.
func (s *source) onConn(ctx context.Context, f func(driver.Conn) error) error {
	conn, err := s.own.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var result error
	_ = conn.Raw(func(dc any) error {
		if result = f(dc.(driver.Conn)); result != nil {
			return driver.ErrBadConn
		}
		return nil
	})
	return result
}
