package asyncjob

import (
	"context"
	"database/sql/driver"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/removal"
)

// removePerWorker bounds a joint removal for few workers: a crash then repeats deliveries in
// proportion to those in flight.
const removePerWorker = 16

// removals removes what the drain delivers while it delivers more.
func (d *drain) removals() *removal.Batches {
	cfg := &d.job.cfg
	return removal.NewBatches(d.writes, removal.Config{
		Remove: d.job.storage.Remove, Timeout: cfg.Lease, Pause: storeBackOff, Failed: d.notRemoved, Erase: d.erase,
	}, removePerWorker*d.concurrency(), cfg.Lease, d.job.guard)
}

// leaving returns the delivered unit for its removal.
func (u *claimed) leaving() *removal.Unit {
	u.Unit.Delivered = !u.result.Undone
	return &removal.Unit{Entry: u.Unit, Lease: u.lease, Certain: !u.InDoubt && !u.result.Found, Ended: func(lost bool) {
		if lost {
			u.result = u.leaseLost()
		}
		u.end()
	}}
}

// notRemoved reports delivered units whose entries could not be removed while their leases
// were kept.
func (d *drain) notRemoved(units []*removal.Unit, err error, _ bool) {
	units = slices.DeleteFunc(slices.Clone(units), func(u *removal.Unit) bool { return u.Lease.Lost() })
	if len(units) == 0 {
		return
	}
	next := "their receipts will show that nothing is left to do"
	if slices.ContainsFunc(units, func(u *removal.Unit) bool { return u.Entry.Receipt == "" }) {
		next = "they may be delivered again"
	}
	d.logger().WithError(err).WithFields(logrus.Fields{"entry": units[0].Entry.ID, "units": len(units)}).
		Warn("delivered, but not all of these entries could be removed; " + next)
	d.notWritten("the removal of what is delivered", err)
}

// erase deletes receipts of removed units. A receipt that cannot be deleted stays for its
// retention.
func (d *drain) erase(_ context.Context, under removal.Session, ids []string) {
	in, leave, err := d.src.session(&entry.Unit{Settings: under.Settings, Session: under.Session})
	if err != nil {
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(d.flight, d.job.cfg.ProbeTimeout)
	defer cancel()
	err = in.pool.Ask(ctx, func(conn driver.Conn) error { return attempt.EraseReceipts(ctx, in.Dialect, conn, in.Receipts, ids) })
	if err != nil && !d.job.receiptsStay(d.tally, d.src, err) {
		d.src.log.WithField("error", in.Dialect.Describe(err)).Info("receipts could not be erased, they stay for their retention")
	}
}
