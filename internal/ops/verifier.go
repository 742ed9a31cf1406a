package ops

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// VerifyTimeout bounds each question to a target. One that did not answer is
// not asked again.
const VerifyTimeout = 3 * time.Second

// Verifier asks targets for receipts. It is for one goroutine at a time.
type Verifier struct {
	storage txlog.Storage
	sources map[string]*askedSource
	// missing is why there are no more sources.
	missing string
	// clean hides secrets.
	clean func(string) string
}

// NewVerifier makes a Verifier for the entries of a log. Verdicts say of a data
// source that it cannot be used; see Config.
func NewVerifier(log txlog.Storage, cfg Config) *Verifier {
	v := &Verifier{
		storage: log, sources: map[string]*askedSource{},
		missing: "the configuration's targetDataSource does not have it", clean: cfg.Clean,
	}
	if v.clean == nil {
		v.clean = func(s string) string { return s }
	}
	for name, problem := range cfg.Problems {
		if name == "" {
			v.missing = problem
			continue
		}
		v.sources[name] = &askedSource{problem: problem}
	}
	for name, t := range cfg.Targets {
		v.sources[name] = &askedSource{target: t}
	}
	return v
}

// Close closes the connections to the targets.
func (v *Verifier) Close() {
	var all sync.WaitGroup
	for _, s := range v.sources {
		if s.conn != nil {
			all.Go(s.close)
		}
	}
	all.Wait()
}

// Judge gives the verdict on each unit, the data sources side by side.
func (v *Verifier) Judge(ctx context.Context, units []*txlog.Unit) ([]Judgement, error) {
	all := make([]Judgement, len(units))
	asked := map[*askedSource][]int{}
	for i, u := range units {
		s := v.sources[u.DataSource]
		switch {
		case u.Receipt == "" && u.Unreadable != nil:
			all[i] = Judgement{CannotTell, "its entry cannot be read whole"}
		case u.Receipt == "" && !u.InDoubt && !u.Leased:
			all[i] = Judgement{CannotTell, notInDoubt}
		case u.Receipt == "":
			all[i] = Judgement{CannotTell, atLeastOnce}
		case s == nil:
			all[i] = Judgement{NotConfigured, v.missing}
		case s.problem != "":
			all[i] = Judgement{NotConfigured, s.problem}
		default:
			asked[s] = append(asked[s], i)
		}
	}
	var wait sync.WaitGroup
	for s, places := range asked {
		wait.Go(func() {
			for _, i := range places {
				all[i] = s.judge(ctx, units[i])
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Detail = v.clean(all[i].Detail)
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

// askedSource is a target that is asked for receipts, by one goroutine at a time.
type askedSource struct {
	target  delivery.Target
	problem string // why it cannot be asked at all

	conn driver.Conn
	// down is why it is not asked any more.
	down error
}

// errSilent: neither an answer nor an error came, although the driver was told
// to give up.
var errSilent = fmt.Errorf("no answer within %v", VerifyTimeout)

// judge asks for the receipt of one unit.
func (s *askedSource) judge(ctx context.Context, u *txlog.Unit) Judgement {
	if s.target.NoSideConnection {
		return Judgement{CannotTell, "its target is in the memory of another process"}
	}
	if s.down != nil {
		return Judgement{Unreachable, s.down.Error()}
	}
	found, place, err := s.find(ctx, u)
	switch {
	case s.down != nil:
		return Judgement{Unreachable, s.down.Error()}
	case err != nil:
		return Judgement{CannotTell, "its receipt cannot be read: " + err.Error()}
	case found == nil && place != u.Place:
		return Judgement{CannotTell, fmt.Sprintf("its receipt is in the table bed_receipt in %s, but targetDataSource leads to %s", u.Place, cmp.Or(place, "none"))}
	case found == nil && u.Place == "" && u.Settings != s.target.Settings && !(u.SettingsOlder && u.Settings == s.target.OlderSettings):
		return Judgement{CannotTell, fmt.Sprintf("the entry was written with the settings %q, but targetDataSource has %q: its receipt may be elsewhere", u.Settings, s.target.Settings)}
	case found == nil && u.Leased:
		return Judgement{NotApplied, running}
	case found == nil:
		return Judgement{NotApplied, ""}
	case found.Fingerprint != u.Fingerprint:
		return Judgement{CannotTell, "another request was applied under its idempotency key"}
	case found.Void:
		return Judgement{NeverApplied, ""}
	default:
		return Judgement{Applied, ""}
	}
}

// find looks the receipt up, and gives the target up when it does not answer.
func (s *askedSource) find(ctx context.Context, u *txlog.Unit) (found *attempt.Found, place string, err error) {
	ctx, cancel := context.WithTimeout(ctx, VerifyTimeout)
	defer cancel()
	type answer struct {
		found *attempt.Found
		place string
		conn  driver.Conn
		err   error
		lost  bool
	}
	got := make(chan answer, 1)
	conn, receipts := s.conn, attempt.Receipts{Schema: s.target.ReceiptSchema}
	s.conn = nil
	go func() { // a driver may not look at its context
		var a answer
		if a.conn = conn; conn == nil {
			a.conn, a.err = s.dial(ctx)
			a.lost = a.err != nil
		}
		if a.err == nil {
			a.found, a.err = attempt.FindReceipt(ctx, s.target.Dialect, a.conn, receipts, u.Receipt)
			if a.err == nil && a.found == nil && u.Place != "" {
				a.place, a.err = attempt.ReceiptPlace(ctx, s.target.Dialect, a.conn, receipts)
			}
			a.lost = a.err != nil && !s.target.Dialect.Class(a.err).Answered()
		}
		if a.lost && a.conn != nil {
			_ = a.conn.Close()
			a.conn = nil
		}
		got <- a
	}()
	select {
	case a := <-got:
		s.conn = a.conn
		if a.lost {
			s.down = a.err
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				s.down = errSilent
			}
		}
		return a.found, a.place, a.err
	case <-time.After(VerifyTimeout + time.Second):
		s.down = errSilent
		return nil, "", errSilent
	}
}

// dial opens a bare connection. Looking at a target never creates one.
func (s *askedSource) dial(ctx context.Context) (driver.Conn, error) {
	if s.target.File != "" {
		if _, err := os.Stat(s.target.File); errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return s.target.Connector.Connect(ctx)
}

func (s *askedSource) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.conn.Close()
	}()
	select {
	case <-closed:
	case <-time.After(VerifyTimeout):
	}
}
