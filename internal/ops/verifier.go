package ops

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

// VerifyTimeout bounds each question to a target. A silent target is not asked again.
const VerifyTimeout = 3 * time.Second

// Verifier asks targets for receipts. It is for one goroutine at a time.
type Verifier struct {
	missing func(ctx context.Context, ids []string) ([]string, error)
	cfg     Config
	places  map[place]*asked
}

// place identifies the receipt table of an entry.
type place struct{ dataSource, settings, session string }

// NewVerifier makes a Verifier for the entries of a log. missing is its method: txlog.Storage.Missing.
func NewVerifier(missing func(ctx context.Context, ids []string) ([]string, error), cfg Config) *Verifier {
	cfg.complete()
	return &Verifier{missing, cfg, map[place]*asked{}}
}

// Close closes the connections to the targets.
func (v *Verifier) Close() {
	for _, a := range v.places {
		a.close()
	}
}

// judge returns the verdict on each unit, on connections of its own.
func (s *Store) judge(ctx context.Context, units ...*entry.Unit) ([]Judgement, error) {
	v := NewVerifier(s.log.Missing, s.cfg)
	defer v.Close()
	return v.Judge(ctx, units)
}

// Judge returns the verdict on each unit. It asks the data sources in parallel.
func (v *Verifier) Judge(ctx context.Context, units []*entry.Unit) ([]Judgement, error) {
	all := make([]Judgement, len(units))
	asked := map[*asked][]int{}
	for i, u := range units {
		switch {
		case u.Undo != nil && u.Unreadable == nil:
			all[i] = Judgement{CannotTell, map[bool]string{true: compensating, false: unstarted}[u.Compensating()]}
		case u.Receipt == "" && u.Unreadable != nil:
			all[i] = Judgement{CannotTell, "its entry cannot be read whole"}
		case u.Receipt == "" && !u.InDoubt && !u.Leased:
			all[i] = Judgement{NotApplied, notInDoubt}
		case u.Receipt == "":
			all[i] = Judgement{CannotTell, atLeastOnce}
		default:
			a := v.asked(u)
			asked[a] = append(asked[a], i)
		}
	}
	var wait sync.WaitGroup
	for a, places := range asked {
		wait.Go(func() {
			for _, i := range places {
				all[i] = a.judge(ctx, units[i])
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Detail = v.cfg.Clean(all[i].Detail)
	}
	return all, v.stillThere(ctx, units, all)
}

// stillThere withdraws the verdict on an entry that is gone: its receipt may have been erased after
// the delivery.
func (v *Verifier) stillThere(ctx context.Context, units []*entry.Unit, all []Judgement) error {
	doubted := map[string]*Judgement{}
	for i, j := range all {
		if j.Verdict == NotApplied && j.Detail != notInDoubt {
			doubted[units[i].ID] = &all[i]
		}
	}
	if len(doubted) == 0 {
		return nil
	}
	gone, err := v.missing(ctx, slices.Collect(maps.Keys(doubted)))
	for _, id := range gone {
		*doubted[id] = Judgement{CannotTell, "its entry is gone meanwhile: it was delivered or discarded"}
	}
	return err
}

// asked is a target, asked in one kind of session: in another, an unqualified name such as
// bed_receipt may mean another table. One goroutine uses it at a time.
type asked struct {
	line
	// over is the verdict if there is no use in asking; otherwise nil.
	over *Judgement
}

func (v *Verifier) asked(u *entry.Unit) *asked {
	at := place{u.DataSource, u.Settings, u.Session}
	a := v.places[at]
	if a == nil {
		a = &asked{}
		v.places[at] = a
		var err error
		switch a.target, err = v.cfg.target(u); {
		case errors.Is(err, ErrNoTarget):
			a.over = &Judgement{NotConfigured, err.Error()}
		case err != nil:
			a.over = &Judgement{CannotTell, err.Error()}
		}
	}
	return a
}

// judge asks for the receipt of one unit. If the target does not answer, it is not asked again.
func (a *asked) judge(ctx context.Context, u *entry.Unit) Judgement {
	if a.over != nil {
		return *a.over
	}
	d := a.target.Dialect
	if d.Peer != nil {
		return Judgement{CannotTell, "the service keeps its receipt, and tells when the call is undone"}
	}
	found, err := ask(ctx, &a.line, func(ctx context.Context, conn driver.Conn) (*attempt.Found, error) {
		r := attempt.Receipts{Schema: a.target.ReceiptSchema}
		found, err := attempt.ReadReceipt(ctx, d, conn, r, u.Receipt)
		if found == nil && (err == nil || attempt.NoReceipts(d, r, err)) {
			err = target.SamePlace(ctx, &a.target, conn, u)
		}
		return found, err
	})
	var elsewhere *target.ElsewhereError
	switch {
	case a.conn != nil && errors.As(err, &elsewhere):
		return Judgement{CannotTell, elsewhere.Why}
	case err != nil && a.conn != nil:
		return Judgement{CannotTell, "its receipt cannot be read: " + err.Error()}
	case err != nil && d.Class(err).Answered():
		a.over = &Judgement{CannotTell, "its receipt cannot be looked for: " + strings.TrimPrefix(err.Error(), target.NotSent)}
		return *a.over
	case err != nil:
		a.over = &Judgement{Unreachable, err.Error()}
		return *a.over
	case found == nil && u.Leased:
		return Judgement{NotApplied, running}
	case found == nil:
		return Judgement{NotApplied, ""}
	case !found.Of(u):
		return Judgement{CannotTell, "another request was applied under its idempotency key"}
	case found.Void:
		return Judgement{NeverApplied, ""}
	default:
		return Judgement{Applied, ""}
	}
}

// line is a connection to a target, dialled when there is a question. It is for one goroutine at a
// time.
type line struct {
	target delivery.Target
	conn   driver.Conn
	// brief means that a statement must not wait long for a lock, or a table being altered.
	brief bool
}

func (l *line) dial(ctx context.Context) (driver.Conn, error) {
	conn, err := target.Look(ctx, &l.target)
	if err == nil && l.brief && l.target.Dialect.Flavor == sqltext.MySQL {
		if _, _, err = attempt.Exec(ctx, conn, "SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 2", nil); err != nil {
			_ = conn.Close()
		}
	}
	return conn, err
}

// ask asks a question within VerifyTimeout. Unless the target answers, the next question dials anew.
func ask[T any](ctx context.Context, l *line, question func(context.Context, driver.Conn) (T, error)) (T, error) {
	type answer struct {
		v    T
		conn driver.Conn
	}
	last := l.conn
	got, err := Within(ctx, VerifyTimeout, func(ctx context.Context) (a answer, err error) {
		if a.conn = last; last == nil {
			if a.conn, err = l.dial(ctx); err != nil {
				return answer{}, err
			}
		}
		a.v, err = question(ctx, a.conn)
		if ctx.Err() != nil || err != nil && !l.target.Dialect.Class(err).Answered() {
			_ = a.conn.Close()
			a.conn = nil
		}
		return a, err
	})
	l.conn = got.conn
	return got.v, err
}

func (l *line) close() {
	if conn := l.conn; conn != nil {
		_, _ = Within(context.Background(), VerifyTimeout, func(context.Context) (any, error) { return nil, conn.Close() })
	}
}

// Within returns a target's answer, or an error after d. It drops later answers: a driver may
// ignore its context.
func Within[T any](ctx context.Context, d time.Duration, ask func(context.Context) (T, error)) (none T, err error) {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	type answer struct {
		v   T
		err error
	}
	got := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("the driver panicked with a %T", p)
			}
			got <- a
		}()
		a.v, a.err = ask(bounded)
	}()
	silent := fmt.Errorf("no answer within %v", d)
	select {
	case a := <-got:
		if a.err != nil && dberr.TimedOut(ctx, bounded) {
			return a.v, silent
		}
		return a.v, a.err
	case <-time.After(d + time.Second/2):
		return none, silent
	}
}
