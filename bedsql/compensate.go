package bedsql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// CompensateAfter compensates a group that is d old and not delivered everywhere, instead of going
// on with the delivery. A job then runs the compensations of the applied parts (see
// SoftTransaction.Compensation). d is at least a millisecond. It counts on the log's clock from
// the group's entries: from End or, under WithTx, from COMMIT. The default is no deadline. It has
// no effect in a group without a compensation. Begin returns an error for an immediate soft
// transaction.
func CompensateAfter(d time.Duration) TxOption {
	return func(s *SoftTransaction) {
		if s.compensateAfter = d; d < time.Millisecond {
			s.unusable = fmt.Errorf("bed: CompensateAfter needs at least a millisecond, it was given %v", d)
		}
	}
}

// errUndoResult is the error of a compensation's Result.
var errUndoResult = fmt.Errorf("%w: a compensation has no result", ErrStaged)

func notRecorded(why string) error {
	return fmt.Errorf("bed: the compensation was neither recorded nor sent: %s", why)
}

const nothingToUndo = "the group writes nothing there that it could undo: record the write first"

// undoes returns an error if a statement cannot be recorded, or run, as a compensation.
func undoes(s *SoftTransaction, under scope, c *Conn, st statement) error {
	switch kind := st.class.Kind; {
	case kind == sqltext.Read && !st.class.Pins:
		return nil
	case s.staged == nil:
		return notRecorded("the soft transaction is immediate; begin it with Staged or WithTx")
	case s.ofRequest() && s.home.local.under.confined:
		return notRecorded("its request is undone as a whole (bedhttp.Config.Undo): whoever undoes the request undoes its groups too")
	case s.key != nil || under.key != nil:
		return unusable("a group under it cannot be compensated")
	case c.c.sendsMessages():
		return notRecorded("a message cannot compensate; publish it after End")
	case under.unlogged:
		return notRecorded("it must not be unlogged")
	case c.tx != nil && !s.home.isOf(c):
		return notRecorded("the local transaction was begun outside of it")
	case c.stagedTx != nil && (!c.stagedTx.undo || c.stagedTx.soft != s):
		return notRecorded("the local transaction was begun outside of it; begin one under soft.Compensation(ctx)")
	case s.home.isOf(c):
		return notRecorded("it was sent through the transaction of WithTx; send it through a bed pool of that database")
	case kind != sqltext.DML && c.stagedTx == nil:
		return notRecorded("it is not plain DML")
	}
	return nil
}

// joinGroup makes u the next part of the group with the compensation back.
func joinGroup(u, back *stagedUnit) {
	if u.unit.Receipt == "" {
		u.c.leaveReceipt(&u.unit)
	}
	if key := u.writes[0].receiptKey; key != "" {
		u.unit.Receipt = key
	}
	part := addPart(&back.unit, &u.unit)
	u.Ending, u.unit.CompensateAfter = besteffort.HoldSettled, back.unit.CompensateAfter
	for i := range u.unit.Statements {
		u.unit.Statements[i].Part = part
	}
}

// addPart adds the work of u to the parts of a compensation, and returns its number, from 1.
func addPart(back, u *entry.Unit) int {
	back.Undo.Parts = append(back.Undo.Parts, entry.Part{
		Unit: u.ID, Receipt: u.Receipt, DataSource: u.DataSource, Settings: u.Settings, Session: u.Session, Account: u.Account, Place: u.Place,
	})
	back.DataSource = back.Undo.Parts[0].DataSource
	return len(back.Undo.Parts)
}

// stagedCompensation makes the compensation of a staged group with these units; nil if none is
// recorded.
func stagedCompensation(ctx context.Context, s *SoftTransaction, units []*stagedUnit) (*stagedUnit, error) {
	first := slices.IndexFunc(s.staged.writes, func(w *stagedWrite) bool { return w.undo })
	if first < 0 {
		return nil, nil
	}
	back := &stagedUnit{c: s.staged.writes[first].c}
	back.unit = entry.Unit{ID: s.id, TransactionID: s.id, CompensateAfter: s.compensateAfter, Undo: new(entry.Undo)}
	back.InFlight.Unit = &back.unit
	for _, u := range units {
		if s.home == nil || u.c.dialect.Peer != nil { // else they were looked for when the writes were recorded
			if err := u.c.forceReceipts(ctx); err != nil {
				return nil, err
			}
		}
		joinGroup(u, back)
	}
	parts := len(units)
	for _, w := range s.staged.writes[first:] {
		if !w.undo {
			continue
		}
		of := s.staged.undone(w)
		part := 1 + slices.IndexFunc(units, func(u *stagedUnit) bool { return of != nil && slices.Contains(u.writes, of) })
		if part == 0 { // the rows of the transaction of WithTx
			if s.home.own == nil {
				parts++
				s.home.own = ownPart(s, w, back, parts)
			}
			part = parts
		}
		w.statement.Part = part
		back.writes = append(back.writes, w)
		back.unit.Statements = append(back.unit.Statements, w.statement)
	}
	return back, nil
}

// undone returns the write that the compensation w undoes, or nil: the last one there, for all of that
// data source. For a service it is the last call before w that no other compensation undoes.
func (g *staging) undone(w *stagedWrite) *stagedWrite {
	var open []*stagedWrite
	for _, other := range g.writes {
		if other == w {
			break
		}
		switch {
		case other.c.target.DataSource != w.c.target.DataSource:
		case !other.undo:
			open = append(open, other)
		case w.c.dialect.Peer != nil && len(open) > 0:
			open = open[:len(open)-1]
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[len(open)-1]
}

// ownPart adds the own rows of the transaction of WithTx to a group, as its part n, and returns
// their unit. It has no entry; its receipt is left by the transaction.
func ownPart(s *SoftTransaction, w *stagedWrite, back *stagedUnit, n int) *stagedUnit {
	own := &stagedUnit{c: w.c}
	w.c.inFlight(scope{soft: s}, true, &own.unit, nil, nil)
	own.unit.Session = cmp.Or(w.session, own.unit.Session)
	addPart(&back.unit, &own.unit)
	own.unit.TransactionID, own.unit.Statements = s.id, []entry.Statement{{Part: n}}
	return own
}

// forceReceipts looks for the table of receipts, for a write under AtLeastOnce that needs it
// because its group has a compensation.
func (c *connector) forceReceipts(ctx context.Context) error {
	if c.target.Known(false) != nil {
		return nil
	}
	if err := leavesReceipts(c.dialect, c.target.DataSource); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	err := c.locateAside(ctx, false)
	if err != nil && c.needsReceipts(err) {
		return err
	}
	return nil
}

// onPart calls f on a connection to the data source of a part, with the place of its receipt.
func onPart(ctx context.Context, s *SoftTransaction, part *entry.Unit, f attempt.Runner) attempt.Outcome {
	i := slices.IndexFunc(s.staged.writes, func(w *stagedWrite) bool { return w.c.target.DataSource == part.DataSource })
	if i < 0 { // what was recorded there was rolled back
		return attempt.Outcome{Class: dialect.Unreachable, Err: errors.New("bed: its data source is not known here")}
	}
	c := s.staged.writes[i].c
	return c.onPool(ctx, true, func(conn driver.Conn) attempt.Outcome {
		if part.Session != "" {
			if err := c.target.InSession(ctx, conn, part); err != nil {
				return attempt.Failed(c.dialect, err, true)
			}
		}
		if c.target.Known(false) == nil {
			if _, err := c.target.Find(ctx, conn, false); err != nil {
				return attempt.Failed(c.dialect, err, true)
			}
		}
		r := c.receipts
		r.Place = part.Place
		out, _ := c.target.Explain(ctx, conn, part, f(ctx, c.dialect, conn, part, r))
		return out
	})
}

// lookAtPart looks for the receipt of a part: see group.Group. A receipt voided after the
// part was applied is Found too.
func lookAtPart(ctx context.Context, d *dialect.Dialect, conn driver.Conn, part *entry.Unit, r attempt.Receipts) attempt.Outcome {
	if d.Peer != nil {
		return attempt.Outcome{}
	}
	switch found, err := attempt.ReadReceipt(ctx, d, conn, r, part.Receipt); {
	case err != nil:
		return attempt.Failed(d, err, true)
	case found == nil:
		return attempt.Outcome{}
	default:
		return attempt.Outcome{Found: !found.Void || found.Compensated, Voided: found.Void}
	}
}
