package asyncjob

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"

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
	err := s.onConn(ctx, func(conn driver.Conn) error { return s.target.Dialect.EraseReceipts(ctx, conn, ids) })
	if err != nil {
		s.log.WithField("error", s.target.Dialect.Describe(err)).Info("receipts could not be erased, they stay for their retention")
	}
}

// purgeDue reports whether receipts should be purged now, and takes the turn.
func (s *source) purgeDue(interval time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down || !s.purged.IsZero() && time.Since(s.purged) < interval {
		return false
	}
	s.purged = time.Now()
	return true
}

// purgeAll purges the targets whose turn has come, behind the deliveries: what
// is known to be down then is left alone.
func (r *round) purgeAll() {
	var all sync.WaitGroup
	for _, s := range r.job.sources {
		if r.ctx.Err() == nil && s.purgeDue(r.job.cfg.PurgeInterval) {
			all.Go(func() { r.job.guard(func() { r.purge(s) }) })
		}
	}
	all.Wait()
}

// purge erases the receipts of this log whose retention is over and whose
// units are not in the log any more.
func (r *round) purge(s *source) {
	ctx, cancel := context.WithTimeout(r.ctx, r.job.cfg.DeliveryTimeout)
	defer cancel()
	erased := 0
	err := s.onConn(ctx, func(conn driver.Conn) (err error) {
		erased, err = s.target.Dialect.PurgeReceipts(ctx, conn, s.receipts, r.job.storage.Missing)
		return err
	})
	switch {
	case err != nil:
		// Most often there is no such table, because no unit left a receipt there.
		s.log.WithField("error", s.target.Dialect.Describe(err)).Debug("receipts could not be purged")
	case erased > 0:
		s.log.WithField("receipts", erased).Info("receipts whose retention was over are purged")
	}
}

// onConn runs f on a bare connection of the pool, which is dropped after an
// error: it is not known what f left behind on it.
func (s *source) onConn(ctx context.Context, f func(driver.Conn) error) error {
	conn, err := s.pool.Conn(ctx)
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
