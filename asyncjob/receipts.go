package asyncjob

import (
	"context"
	"database/sql/driver"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener"
)

// receiptsKey names the concerns about the receipts of a data source; its deliveries do not
// settle these.
func (s *source) receiptsKey() string { return s.name + "\x00receipts" }

// receiptsStay reports, once, receipts that cannot be deleted for lack of rights; false for
// other errors.
func (j *Job) receiptsStay(t *tally, s *source, err error) bool {
	said, ok := s.needsOperator(err)
	if !ok {
		return false
	}
	t.note(s.name, func(r *DataSourceReport) { r.Purge = err })
	if said = "receipts cannot be erased or purged, they pile up until an operator acts: " + said; j.concerns.raise(s.receiptsKey(), said) {
		s.log.Warn(said)
	}
	return true
}

const (
	// purgeFor limits a purge within a round: no page begins after it, because pending writes
	// should not wait. The purge continues in the next round.
	purgeFor = 2 * time.Second
	// purgeLimit ends a purge whose page is held up by another session's lock.
	purgeLimit = 10 * time.Second
)

// purgePoint is a place of receipts, empty for the place of the job's own session, and the
// last receipt purged there.
type purgePoint struct{ place, after string }

// purgeDue reports whether a purge is due, and from where on; with take it takes the turn.
func (s *source) purgeDue(interval time.Duration, take bool) (from purgePoint, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = !s.down && s.isSQL() && (s.purging || time.Since(s.purged) >= interval)
	if due && take {
		s.purging, s.purged = false, time.Now()
	}
	return s.purgedTo, due
}

// purgeEnded saves the end of a purge. After an error the purge continues after the failed
// page, and not before the interval is over. The failed page comes again after the others.
func (s *source) purgeEnded(to purgePoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purgedTo, s.purging = to, to != purgePoint{} && err == nil
}

// purge erases receipts of this log after their retention, once their units are no longer in
// the log. It covers the whole database, because sessions with another search path leave
// receipts elsewhere. It comes after the deliveries and skips a data source that they found
// unreachable.
func (j *Job) purge(round context.Context, t *tally, s *source, from purgePoint) {
	ctx, cancel := context.WithTimeout(round, min(purgeLimit, j.cfg.DeliveryTimeout))
	defer cancel()
	dialect := s.own.Dialect
	erased, end := 0, time.Now().Add(s.purgeFor)
	kept := s.own.Receipts
	err := s.own.pool.Ask(ctx, func(conn driver.Conn) error {
		// The job's own DSN need not have the applications' setting.
		schema, known, err := j.storage.ReceiptSchema(ctx, s.name)
		if err != nil {
			return err
		}
		if known {
			kept.Schema = schema
		}
		elsewhere, unusable, err := attempt.ReceiptsElsewhere(ctx, dialect, conn, kept)
		if err != nil {
			return err
		}
		if said := "there are tables bed_receipt that this account may not read and purge; if they hold receipts of this log, have run: " +
			strings.Join(unusable, "; "); len(unusable) > 0 && j.concerns.raise(s.receiptsKey()+" elsewhere", said) {
			s.log.Warn(said)
		}
		places := append([]attempt.Receipts{kept}, elsewhere...)
		for i, at := range places {
			if at.Place < from.place {
				continue
			}
			if at.Place > from.place {
				from = purgePoint{place: at.Place}
			}
			for more := true; more; more = from.after != "" {
				next, n, err := attempt.PurgeReceipts(ctx, dialect, conn, at, from.after, j.storage.Missing)
				erased, from.after = erased+n, next
				if err != nil && at.Place == "" && len(elsewhere) > 0 && attempt.NoReceipts(dialect, at, err) {
					break // only others have receipts
				}
				if err != nil && next == "" { // the next place comes first then
					from = purgePoint{place: places[(i+1)%len(places)].Place}
				}
				if err != nil || next != "" && time.Now().After(end) {
					return attempt.ReceiptRights(ctx, dialect, conn, at, err)
				}
			}
		}
		from = purgePoint{}
		return j.keys.Purge(ctx, dialect, conn, places, end)
	})
	s.purgeEnded(from, err)
	if erased > 0 && j.cfg.Bus.Listening() {
		j.cfg.Bus.Publish(listener.Event{
			Type: listener.ReceiptsPurged, Origin: listener.AsyncJob, Time: time.Now(), DataSource: s.name, Receipts: erased,
		})
	}
	switch {
	case err != nil && j.receiptsStay(t, s, err):
	case err != nil:
		level := logrus.WarnLevel
		if attempt.NoReceipts(dialect, kept, err) || round.Err() != nil {
			level = logrus.DebugLevel // no unit left a receipt there; or the job ends
		}
		s.log.WithField("error", dialect.Describe(err)).Log(level, "receipts could not be purged")
	case erased > 0:
		j.concerns.settled(s.receiptsKey())
		s.log.WithField("receipts", erased).Info("receipts whose retention was over are purged")
	}
}
