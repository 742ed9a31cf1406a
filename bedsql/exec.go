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
	"github.com/bedsql/bed/txlog"
)

// execution is a DML outside any local transaction, with the needs of its attempts.
type execution struct {
	besteffort.InFlight
	again

	c    *Conn
	s    statement
	unit entry.Unit
	text [1]entry.Statement
}

// submit makes a unit of one DML outside any local transaction, and lets to deliver it. For a
// Query it reads all rows before the write counts as delivered, and hands them on buffered.
func (c *Conn) submit(ctx context.Context, under scope, s statement, to besteffort.Delivery) (attempt.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attempt.Reply{}, err
	}
	if c.c.shared != nil {
		return attempt.Reply{}, c.c.shared
	}
	receipt := c.c.cfg.Guarantee == ExactlyOnce
	if under != (scope{}) {
		receipt = under.exactlyOnce(&c.c.cfg)
	}
	if s.class.Hazards != 0 {
		if err := c.c.guard.admit(s, receipt); err != nil {
			return attempt.Reply{}, err
		}
	}
	var err error
	x := &execution{c: c, s: s}
	x.again = again{c, c.c, &x.unit}
	if x.text[0], x.s.Args, err = c.c.store(s.Call); err != nil {
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
	if c.c.target.Named {
		if err := c.readSettings(ctx); err != nil {
			return attempt.Reply{}, err
		}
	}
	x.unit.Statements = x.text[:]
	x.InFlight = c.c.inFlight(under, receipt, &x.unit, c, x)
	x.Deadline = deadline
	// The rows of a Query cannot be invented, so its error is the caller's.
	if soft != nil && !s.rows {
		x.Ending = besteffort.ParkRefused
	}
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
		if x.unit.Receipt == "" && x.unit.Session == c.session.Facts.Session {
			return attempt.One(ctx, c.c.dialect, &c.session, x.s.Call, x.s.rows, x.unit.InDoubt)
		}
		return x.attempt(ctx, &c.session, x.s.Call)
	})
}

// Again implements besteffort.Attempts, on another connection or in a session that may have
// changed: a statement prepared there may be gone.
func (x *execution) Again(ctx context.Context) attempt.Outcome {
	anew := x.s.Call
	anew.Stmt = nil
	return x.c.onChecked(ctx, func(conn driver.Conn) attempt.Outcome { return x.attempt(ctx, conn, anew) })
}

// again implements besteffort.Attempts, but for the first attempt, on checked connections.
type again struct {
	on interface {
		onChecked(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome
	}
	of   *connector
	unit *entry.Unit
}

func (a again) run(ctx context.Context, f attempt.Runner) attempt.Outcome {
	return a.on.onChecked(ctx, func(conn driver.Conn) attempt.Outcome { return a.of.run(ctx, conn, a.unit, f) })
}

// Again makes one more attempt of a unit with its parameters as the log keeps them.
func (a again) Again(ctx context.Context) attempt.Outcome { return a.run(ctx, attempt.Replay) }

func (a again) Void(ctx context.Context) attempt.Outcome { return a.run(ctx, attempt.Void) }

func (a again) MarkReported(ctx context.Context) attempt.Outcome {
	return a.run(ctx, attempt.MarkReported)
}

// attempt makes one attempt of the write on conn, with its receipt if it has one.
func (x *execution) attempt(ctx context.Context, conn driver.Conn, call dialect.Call) attempt.Outcome {
	c := x.c.c
	return c.attempt(ctx, conn, &x.unit, func() attempt.Outcome {
		if x.unit.Receipt == "" {
			return attempt.One(ctx, c.dialect, conn, call, x.s.rows, x.unit.InDoubt)
		}
		return attempt.Apply(ctx, c.dialect, conn, []dialect.Call{call}, &x.unit, c.receipts, x.s.rows)
	})
}

// undecided reports whether err leaves open whether the write is, or will be,
// applied.
func undecided(err error) bool {
	return errors.Is(err, ErrPending) || errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrNotCommitted)
}

// store turns a statement into its stored form. Every attempt sends args, and the log keeps them
// too, so a Valuer is asked once. If it returns an error, nothing ran.
func (c *connector) store(call dialect.Call) (s entry.Statement, args []driver.NamedValue, err error) {
	args, err = storable(c.dialect, call)
	if err == nil {
		s.SQL, s.Prepared, s.Required = call.SQL, call.Prepared, call.Required
		s.Params, err = entry.EncodeParams(args)
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
func (c *connector) inFlight(under scope, receipt bool, u *entry.Unit, on *Conn, a besteffort.Attempts) besteffort.InFlight {
	session, last := "", c.session.Load() // empty: it is not known what it resolves to
	switch {
	case on != nil && on.inner != nil:
		session = on.session.Facts.Session
	case last != nil:
		session = *last
	}
	u.ID, u.DataSource, u.Settings, u.Session = cmp.Or(under.id, entry.NewID()), c.target.DataSource, c.target.Settings, session
	u.TransactionID = u.ID
	if under.soft != nil {
		u.TransactionID = under.soft.id
	}
	d := besteffort.InFlight{Unit: u, Attempts: a, Policy: besteffort.Policy{
		Logging:     besteffort.Logging(c.cfg.Logging),
		RemoveLater: c.cfg.Removal == RemovalAfterReturn || c.cfg.Removal == RemovalByGuarantee && receipt,
	}}
	if under.withLogging {
		d.Logging = besteffort.Logging(under.logging)
	}
	if receipt && !c.leaveReceipt(u) {
		d.Logging = besteffort.LogBefore // the first attempt must record in the log where the receipt will be
	}
	if session == "" {
		u.Account = c.target.Account
	}
	if c.dialect.Session != nil && last == nil {
		d.Logging = besteffort.LogBefore // and what its session resolves to
	}
	return d
}

// noResult is Exec's Result in a soft transaction for a write that End will report: 0 rows. With an
// error, such as ErrRowsUnknown, it is the Result of a write without an answer.
type noResult struct{ err error }

func (r noResult) LastInsertId() (int64, error) { return 0, r.err }

func (r noResult) RowsAffected() (int64, error) { return 0, r.err }
