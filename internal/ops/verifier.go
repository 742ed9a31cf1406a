package ops

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// VerifyTimeout bounds each question to a target. One that did not answer is
// not asked again.
const VerifyTimeout = 3 * time.Second

// Verifier asks targets for receipts. It is for one goroutine at a time.
type Verifier struct {
	storage txlog.Storage
	cfg     Config
	places  map[place]*asked
}

// place is what an entry says of where its receipt is.
type place struct{ dataSource, settings, session string }

// NewVerifier makes a Verifier for the entries of a log.
func NewVerifier(log txlog.Storage, cfg Config) *Verifier {
	cfg.complete()
	return &Verifier{log, cfg, map[place]*asked{}}
}

// Close closes the connections to the targets.
func (v *Verifier) Close() {
	var all sync.WaitGroup
	for _, a := range v.places {
		if a.conn != nil {
			all.Go(func() {
				_, _ = Within(context.Background(), VerifyTimeout, func(context.Context) (any, error) { return nil, a.conn.Close() })
			})
		}
	}
	all.Wait()
}

// Judge gives the verdict on each unit, the data sources side by side.
func (v *Verifier) Judge(ctx context.Context, units []*txlog.Unit) ([]Judgement, error) {
	all := make([]Judgement, len(units))
	asked := map[*asked][]int{}
	for i, u := range units {
		switch {
		case u.Receipt == "" && u.Unreadable != nil:
			all[i] = Judgement{CannotTell, "its entry cannot be read whole"}
		case u.Receipt == "" && !u.InDoubt && !u.Leased:
			all[i] = Judgement{CannotTell, notInDoubt}
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

// stillThere takes back the verdict on an entry that is gone: if it was delivered
// meanwhile its receipt may be erased already.
func (v *Verifier) stillThere(ctx context.Context, units []*txlog.Unit, all []Judgement) error {
	var ids []string
	for i, j := range all {
		if j.Verdict == NotApplied {
			ids = append(ids, units[i].ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	gone, err := v.storage.Missing(ctx, ids)
	for _, id := range gone {
		for i, u := range units {
			if u.ID == id {
				all[i] = Judgement{CannotTell, "its entry is gone meanwhile: it was delivered or discarded"}
			}
		}
	}
	return err
}

// asked is a target in sessions such as some entries': an unqualified name, such as
// that of bed_receipt, may mean another table in others. It is asked by one goroutine
// at a time.
type asked struct {
	target delivery.Target
	conn   driver.Conn
	// over is the verdict without asking; nil: it can be asked.
	over *Judgement
}

func (v *Verifier) asked(u *txlog.Unit) *asked {
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

// judge asks for the receipt of one unit.
func (a *asked) judge(ctx context.Context, u *txlog.Unit) Judgement {
	if a.over != nil {
		return *a.over
	}
	found, place, err := a.find(ctx, u)
	switch {
	case a.over != nil:
		return *a.over
	case err != nil:
		return Judgement{CannotTell, "its receipt cannot be read: " + err.Error()}
	case found == nil && place != u.Place:
		return Judgement{CannotTell, fmt.Sprintf("its receipt is in the table bed_receipt in %s, but targetDataSource leads to %s", u.Place, cmp.Or(place, "none"))}
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

// find looks the receipt up, and gives the target up when it does not answer.
func (a *asked) find(ctx context.Context, u *txlog.Unit) (*attempt.Found, string, error) {
	type answer struct {
		found *attempt.Found
		place string
		conn  driver.Conn
	}
	d, conn, receipts := a.target.Dialect, a.conn, attempt.Receipts{Schema: a.target.ReceiptSchema}
	a.conn = nil
	got, err := Within(ctx, VerifyTimeout, func(ctx context.Context) (got answer, err error) {
		if got.conn = conn; conn == nil {
			if got.conn, err = a.dial(ctx); err != nil {
				return answer{}, err
			}
		}
		got.found, err = attempt.FindReceipt(ctx, d, got.conn, receipts, u.Receipt)
		if err == nil && got.found == nil && u.Place != "" {
			got.place, err = attempt.ReceiptPlace(ctx, d, got.conn, receipts)
		}
		if err != nil && !d.Class(err).Answered() {
			_ = got.conn.Close()
			got.conn = nil
		}
		return got, err
	})
	a.conn = got.conn
	var other *delivery.SessionError
	switch {
	case err == nil || a.conn != nil:
	case errors.As(err, &other), d.Class(err).Answered():
		a.over = &Judgement{CannotTell, "its receipt cannot be looked for: " + strings.TrimPrefix(err.Error(), "not delivered: ")}
	default:
		a.over = &Judgement{Unreachable, err.Error()}
	}
	return got.found, got.place, err
}

// dial opens a connection. Looking at a target never creates one.
func (a *asked) dial(ctx context.Context) (driver.Conn, error) {
	if a.target.File != "" {
		if _, err := os.Stat(a.target.File); errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	conn, _, err := a.target.Dial(ctx)
	return conn, err
}

// Within gives what a target answers within d. What it answers later is dropped: a driver
// may not look at its context.
func Within[T any](ctx context.Context, d time.Duration, ask func(context.Context) (T, error)) (T, error) {
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
		var none T
		return none, silent
	}
}
