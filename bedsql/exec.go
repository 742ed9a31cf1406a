package bedsql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/txlog"
)

// execution is a DML outside any local transaction, with the needs of its attempts.
type execution struct {
	besteffort.InFlight

	c *Conn
	// rows means that it was sent through Query.
	call dialect.Call
	// rows means that it was sent through Query.
	rows bool
	unit txlog.Unit
	text [1]txlog.Statement
}

// deliverer is the connector's, or a decorator of it.
type deliverer interface {
	Deliver(ctx context.Context, d *besteffort.InFlight) error
}

// submit makes a unit of one DML outside any local transaction, and lets to deliver it. For a
// Query it reads all rows before the write counts as delivered, and hands them on buffered.
func (c *Conn) submit(ctx context.Context, under scope, s statement, to deliverer) (attempt.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attempt.Reply{}, err
	}
	receipt := under.exactlyOnce(&c.c.cfg)
	if s.class.Hazards != 0 {
		if err := c.c.guard.admit(s, receipt); err != nil {
			return attempt.Reply{}, err
		}
	}
	var err error
	x := &execution{c: c, call: s.Call, rows: s.rows}
	if x.text[0], x.call.Args, err = c.c.store(s.Call); err != nil {
		return attempt.Reply{}, err
	}
	soft := under.soft
	if soft != nil {
		if err := soft.enter(); err != nil {
			return attempt.Reply{}, err
		}
		defer soft.left(&x.InFlight)
	}
	var deadline time.Time
	if receipt {
		c.eraseInTurn(ctx)
		if deadline, err = c.lookForReceipts(ctx, under.key != nil); err != nil && c.c.needsReceipts(err) {
			return attempt.Reply{}, err
		}
	}
	ordered, err := orderKey(c.c, under)
	if err != nil {
		return attempt.Reply{}, err
	}
	x.unit.Statements, x.unit.Order = x.text[:], withKey(nil, ordered)
	x.InFlight = c.c.inFlight(under, receipt, &x.unit, c, x)
	x.Deadline = deadline
	// The rows of a Query cannot be invented, so its error is the caller's.
	x.KeepRefused = soft != nil && !s.rows
	if err := to.Deliver(ctx, &x.InFlight); err != nil {
		c.c.cfg.Counters.failed(err)
		if soft != nil && !s.rows && soft.swallow(err) {
			return attempt.Reply{Result: noResult{}}, nil
		}
		return attempt.Reply{}, err
	}
	c.c.cfg.Counters.Delivered.Add(1)
	if soft != nil {
		soft.arrive(c.c.target.DataSource)
	}
	out := &x.Outcome
	switch {
	case !s.rows && out.Result == nil:
		return attempt.Reply{Result: noResult{ErrRowsUnknown}}, nil
	case s.rows && out.Rows == nil:
		// The attempt that delivered it lost its rows with the answer.
		return attempt.Reply{}, ErrRowsUnknown
	case s.rows && ctx.Err() != nil:
		// database/sql would report the end of the context in place of the rows.
		return attempt.Reply{}, because(ErrRowsUnknown, ctx.Err())
	case s.rows:
		return attempt.Reply{Rows: out.Rows.IfCut(func(err error) error { return because(ErrRowsUnknown, err) })}, nil
	}
	return attempt.Reply{Result: out.Result}, nil
}

// passThrough hands a write straight to the driver, unlogged.
func (c *Conn) passThrough(ctx context.Context, under scope, s statement) (attempt.Reply, error) {
	why := "" // Unlogged asked for it, here or where the transaction was begun
	switch {
	case under.unlogged:
	case under.key != nil:
		return attempt.Reply{}, unusable("the write would run unlogged")
	case under.ordered:
		return attempt.Reply{}, disordered("the write would run unlogged")
	case c.pinned != "":
		why = c.pinned
	case s.class.Pins || s.class.NeedsSession:
		why = "the statement depends on its session"
	}
	if why != "" {
		if err := c.refuseUnlogged(why); err != nil {
			return attempt.Reply{}, err
		}
	}
	if err := c.ready(ctx); err != nil {
		return attempt.Reply{}, err
	}
	if err := ctx.Err(); err != nil {
		return attempt.Reply{}, err
	}
	reply, err := c.sendUnlogged(ctx, s)
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, driver.ErrBadConn) {
		return reply, err // what the driver did not take comes again from database/sql
	}
	if why != "" {
		c.ranUnlogged(s, why)
	} else {
		c.c.cfg.Counters.Unlogged.Add(1)
	}
	if err == nil && s.class.Pins {
		c.pinBy(s) // @v := …
	}
	return reply, err
}

// sendUnlogged hands s to the driver as database/sql would, but with a row requirement in a local
// transaction of its own.
func (c *Conn) sendUnlogged(ctx context.Context, s statement) (r attempt.Reply, err error) {
	switch d := c.c.dialect; {
	case !s.Required.Given():
		if r, err = c.sendOnce(ctx, s); c.tx == nil && !errors.Is(err, driver.ErrSkip) && !errors.Is(err, driver.ErrBadConn) {
			err = c.c.leftOpen(err)
		}
		return r, err
	case c.tx != nil:
		r, _, err = c.tx.require(ctx, s)
		return r, err
	case c.dead:
		return r, driver.ErrBadConn // a BEGIN could commit what is still open
	case c.pinned != "" && d.Flavor != txlog.FlavorSQLite && (d.Idle == nil || !d.Idle(c.inner)):
		return r, fmt.Errorf("bed: the write was not sent: its rows can be checked only in a local transaction (RequireRows, AtLeastRows), which cannot be begun safely here (%s); "+
			"begin one by BeginTx, or use another connection", c.pinned)
	}
	if err := s.prepareLate(ctx); err != nil {
		return r, err
	}
	out := c.onOwn(func() attempt.Outcome {
		return attempt.One(ctx, c.c.dialect, &c.session, s.Call, s.rows, false)
	})
	if out.Rows != nil {
		r.Rows = out.Rows
	}
	r.Result = out.Result
	return r, besteffort.LeftOpen(c.c.target.DataSource, out, nil)
}

// refuseUnlogged returns an error for an unlogged write if the configuration refuses such writes.
func (c *Conn) refuseUnlogged(why string) error {
	if c.c.cfg.Pinned != PinnedRefuse {
		return nil
	}
	return fmt.Errorf("%w: %s; use a connection of its own for it, or bedsql.Unlogged", ErrPinned, why)
}

// ranUnlogged counts an unlogged write, and warns of the first on this connection.
func (c *Conn) ranUnlogged(s statement, why string) {
	c.c.cfg.Counters.PassedThrough.Add(1)
	if c.warned {
		return
	}
	c.warned = true
	flavor := c.c.dialect.Flavor
	fields := logrus.Fields{"reason": why, "statement": shown(flavor, s.SQL), "advice": unloggedAdvice}
	if c.pinnedBy != "" {
		fields["pinned_by"] = shown(flavor, c.pinnedBy)
	}
	c.c.log.WithFields(fields).Warn("bed: writes on this connection run unlogged and unretried")
}

// unloggedAdvice explains how to avoid unlogged writes.
const unloggedAdvice = "put settings into the DSN, send one statement at a time, give session work a connection of its own " +
	"(sql.DB.Conn) that is closed after it; bedsql.Unlogged where it is meant; Config.Pinned: bedsql.PinnedRefuse makes it an error"

// First implements besteffort.Attempts, on the caller's own connection.
func (x *execution) First(ctx context.Context) attempt.Outcome {
	c := x.c
	return c.onOwn(func() attempt.Outcome {
		if err := c.ensure(ctx); err != nil {
			return attempt.Outcome{Err: err, Class: c.c.dialClass(err)}
		}
		if x.unit.Session != c.session.Facts.Session && x.Logging != besteffort.LogAlongside {
			x.unit.Session = "" // another's, and nothing was sent in it
		}
		return x.attempt(ctx, &c.session, x.call)
	})
}

// Again implements besteffort.Attempts, on another connection or in a session that may have
// changed: a statement prepared there may be gone.
func (x *execution) Again(ctx context.Context, step besteffort.Step) attempt.Outcome {
	anew := x.call
	anew.Stmt = nil
	return x.c.onChecked(ctx, func(conn driver.Conn) attempt.Outcome {
		if step == besteffort.Retry {
			return x.attempt(ctx, conn, anew)
		}
		return x.c.c.onReceipt(ctx, conn, step, &x.unit)
	})
}

// attempt makes one attempt of the write on conn, with its receipt if it has one.
func (x *execution) attempt(ctx context.Context, conn driver.Conn, call dialect.Call) attempt.Outcome {
	c := x.c.c
	return c.attempt(ctx, conn, &x.unit, func() attempt.Outcome {
		if x.unit.Receipt == "" {
			return attempt.One(ctx, c.dialect, conn, call, x.rows, x.unit.InDoubt)
		}
		return attempt.Apply(ctx, c.dialect, conn, []dialect.Call{call}, &x.unit, c.receipts, x.rows)
	})
}

// undecided reports whether err leaves open whether the write is, or will be,
// applied.
func undecided(err error) bool {
	return errors.Is(err, ErrPending) || errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrNotCommitted)
}

// isParked reports whether err is a refusal that stays in the log.
func isParked(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && !refused.Removed
}

// store turns a statement into its stored form. Every attempt sends args, and the log keeps them
// too, so a Valuer is asked once. If it returns an error, nothing ran.
func (c *connector) store(call dialect.Call) (s txlog.Statement, args []driver.NamedValue, err error) {
	args, err = storable(c.dialect, call)
	if err == nil {
		s.SQL, s.Prepared, s.Required = call.SQL, call.Prepared, call.Required
		s.Params, err = txlog.EncodeParams(args)
	}
	if err != nil {
		return s, nil, fmt.Errorf("bed: nothing was run: %w", err)
	}
	return s, args, nil
}

// storable turns the call's arguments into a storable form: see dialect.Dialect.Storable. It
// copies the list only to change it.
func storable(d *dialect.Dialect, call dialect.Call) ([]driver.NamedValue, error) {
	args := call.Args
	if d.Storable == nil {
		return args, nil
	}
	out, copied := args, false
	for i := range args {
		switch v := args[i].Value.(type) {
		case nil, bool, int64, float64, string:
			continue
		case []byte:
			if v != nil {
				continue
			}
		}
		v, err := d.Storable(args[i].Value)
		if err != nil {
			return nil, &txlog.ParamError{Name: args[i].Name, Ordinal: args[i].Ordinal, Type: fmt.Sprintf("%T", args[i].Value), Err: err}
		}
		if !copied {
			out, copied = slices.Clone(args), true
		}
		out[i].Value = v
	}
	if call.Args = out; copied && d.Sendable != nil {
		if i, err := d.Sendable(args, call); err != nil {
			return nil, &txlog.ParamError{Name: args[i].Name, Ordinal: args[i].Ordinal, Type: fmt.Sprintf("%T", args[i].Value), Err: err}
		}
	}
	return out, nil
}

// inFlight prepares u for delivery. u's statements were written in a scope and, unless it is nil,
// on the connection on. inFlight gives u its id and, with receipt, its receipt.
func (c *connector) inFlight(under scope, receipt bool, u *txlog.Unit, on *Conn, a besteffort.Attempts) besteffort.InFlight {
	session, last := "", c.session.Load() // empty: it is not known what it resolves to
	switch {
	case on != nil && on.inner != nil:
		session = on.session.Facts.Session
	case last != nil:
		session = *last
	}
	u.ID, u.DataSource, u.Settings, u.Session = cmp.Or(under.id, txlog.NewID()), c.target.DataSource, c.target.Settings, session
	u.TransactionID = u.ID
	if under.soft != nil {
		u.TransactionID = under.soft.id
	}
	d := besteffort.InFlight{
		Unit: u, Attempts: a, Logging: besteffort.Logging(c.cfg.Logging),
		RemoveLater: c.cfg.Removal == RemovalAfterReturn || c.cfg.Removal == RemovalByGuarantee && receipt,
	}
	if under.withLogging {
		d.Logging = besteffort.Logging(under.logging)
	}
	if receipt && !c.leaveReceipt(u) {
		d.Logging = besteffort.LogBefore // the first attempt must record in the log where the receipt will be
	}
	if len(u.Order) > 0 {
		// Its place is known once it is in the log, and its successor's turn comes when it is
		// removed.
		d.Logging, d.RemoveLater = besteffort.LogBefore, false
	}
	if session == "" {
		u.Account = c.target.Account
	}
	if c.dialect.Session != nil && last == nil {
		d.Logging = besteffort.LogBefore // and what its session resolves to
	}
	return d
}

// noResult is Exec's Result in a soft transaction for a write that End will report: 0 rows. With
// ErrRowsUnknown, it is the Result of a write whose successful attempt lost its answer.
type noResult struct{ err error }

func (r noResult) LastInsertId() (int64, error) { return 0, r.err }

func (r noResult) RowsAffected() (int64, error) { return 0, r.err }
