package cli

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

// A verdict says of an entry whether its writes are applied in its target. The
// names are those of JSON and promised to users.
type verdict string

const (
	// verdictApplied: the receipt is there. To discard the entry is safe, to
	// retry it only removes it.
	verdictApplied verdict = "applied"
	// verdictNotApplied: there is no receipt, or not yet. To retry applies it
	// once; to discard gives it up.
	verdictNotApplied verdict = "notApplied"
	// verdictNever: the receipt is void. It is not applied and never will be;
	// the application has to do the work anew.
	verdictNever verdict = "neverApplied"
	// verdictCannotTell: there is nothing to go by, such as for an entry that is
	// delivered at least once. An operator has to look at the data.
	verdictCannotTell verdict = "cannotTell"
	// verdictUnreachable: the target did not answer. Ask again later.
	verdictUnreachable verdict = "unreachable"
	// verdictNotConfigured: targetDataSource does not say where the target is.
	verdictNotConfigured verdict = "notConfigured"
)

const verdictHelp = `
The verdict says whether the writes of a log are applied in its target. It is read
from the receipt that exactly-once deliveries leave there, with the DSN of
targetDataSource:

    already applied              discard is safe; retry only removes the entry
    not applied                  retry applies it once; discard gives it up. For a log
                                 that is not replayable retry decides that it never
                                 will be applied
    decided never to be applied  discard it, and do the work anew if it is still wanted
    cannot tell (at-least-once)  it leaves no receipt: look at the data, unless no attempt
                                 is in doubt
    target unreachable           ask again when it is back
    data source not configured   add it to targetDataSource

An attempt that is still running is not waited for: "not applied" means "not yet"
until the log is neither leased nor waiting. Receipts are only as good as both
databases: after either was restored from a backup, look at the data.

In JSON it is the field verdict: applied, notApplied, neverApplied, cannotTell,
unreachable or notConfigured; verdictDetail says more, for people to read.`

// A judgement is the verdict on one entry. Its detail never holds a secret.
type judgement struct {
	verdict verdict
	detail  string
}

// note is what is worth saying beside a list; empty for nothing.
func (j judgement) note() string {
	switch j.detail {
	case "", atLeastOnce, notInDoubt, running:
		return ""
	}
	return j.short() + ": " + j.detail
}

// short is the verdict in a list.
func (j judgement) short() string {
	switch j.verdict {
	case verdictApplied:
		return "already applied"
	case verdictNotApplied:
		return "not applied"
	case verdictNever:
		return "decided never to be applied"
	case verdictUnreachable:
		return "target unreachable"
	case verdictNotConfigured:
		return "data source not configured"
	default:
		if j.detail == atLeastOnce || j.detail == notInDoubt {
			return "cannot tell (at-least-once)"
		}
		return "cannot tell"
	}
}

// advice is what it lets an operator do.
func (j judgement) advice(u *txlog.Unit) string {
	switch {
	case j.verdict == verdictApplied:
		return "discard is safe, retry only removes the entry"
	case j.verdict == verdictNever:
		return "discard it, and do the work anew if it is still wanted"
	case j.verdict == verdictNotApplied && j.detail != "":
		return j.detail
	case j.verdict == verdictNotApplied && u.NotReplayable != "":
		return "retry decides that it never will be"
	case j.verdict == verdictNotApplied:
		return "retry applies it once"
	}
	return j.detail
}

const (
	atLeastOnce = "it leaves no receipt in its target: look at the data"
	notInDoubt  = "it leaves no receipt in its target; the log knows of no attempt that may have been applied"
	running     = "an attempt may be running at this moment"
)

// verifyTimeout bounds each question to a target. One that did not answer is
// not asked again.
const verifyTimeout = 3 * time.Second

// A verifier asks targets for receipts.
type verifier struct {
	storage txlog.Storage
	sources map[string]*askedSource
	// missing is why there are no more sources.
	missing string
	// clean hides secrets.
	clean func(string) string
}

// verifier makes one from the configuration; a data source that cannot be used
// is said to be so by its verdicts.
func (a *app) verifier(st txlog.Storage, cfg *config) *verifier {
	v := &verifier{
		storage: st, sources: map[string]*askedSource{},
		missing: "the configuration's targetDataSource does not have it",
		clean:   func(s string) string { return redact(s, a.dsns...) },
	}
	for _, s := range cfg.targets {
		switch {
		case s.name == "":
			v.missing = s.problem.Error()
			continue
		case s.problem != nil:
			v.sources[s.name] = &askedSource{problem: s.problem.Error()}
			continue
		}
		t, err := s.target()
		if err != nil {
			v.sources[s.name] = &askedSource{problem: err.Error()}
			continue
		}
		v.sources[s.name] = &askedSource{target: t}
	}
	return v
}

func (v *verifier) close() {
	var all sync.WaitGroup
	for _, s := range v.sources {
		if s.conn != nil {
			all.Go(s.close)
		}
	}
	all.Wait()
}

// judge gives the verdict on each unit, the data sources side by side.
func (v *verifier) judge(ctx context.Context, units []*txlog.Unit) ([]judgement, error) {
	all := make([]judgement, len(units))
	asked := map[*askedSource][]int{}
	for i, u := range units {
		s := v.sources[u.DataSource]
		switch {
		case u.Receipt == "" && u.Unreadable != nil:
			all[i] = judgement{verdictCannotTell, "its entry cannot be read whole"}
		case u.Receipt == "" && !u.InDoubt && !u.Leased:
			all[i] = judgement{verdictCannotTell, notInDoubt}
		case u.Receipt == "":
			all[i] = judgement{verdictCannotTell, atLeastOnce}
		case s == nil:
			all[i] = judgement{verdictNotConfigured, v.missing}
		case s.problem != "":
			all[i] = judgement{verdictNotConfigured, s.problem}
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
		all[i].detail = v.clean(all[i].detail)
	}
	return all, v.stillThere(ctx, units, all)
}

// stillThere takes back what was said of an entry that is gone: the receipt of one
// that was delivered meanwhile may be erased already.
func (v *verifier) stillThere(ctx context.Context, units []*txlog.Unit, all []judgement) error {
	var ids []string
	for i, j := range all {
		if j.verdict == verdictNotApplied {
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
				all[i] = judgement{verdictCannotTell, "its entry is gone meanwhile: it was delivered or discarded"}
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
var errSilent = fmt.Errorf("no answer within %v", verifyTimeout)

// judge asks for the receipt of one unit.
func (s *askedSource) judge(ctx context.Context, u *txlog.Unit) judgement {
	if s.target.NoSideConnection {
		return judgement{verdictCannotTell, "its target is in the memory of another process"}
	}
	if s.down != nil {
		return judgement{verdictUnreachable, s.down.Error()}
	}
	found, place, err := s.find(ctx, u)
	switch {
	case s.down != nil:
		return judgement{verdictUnreachable, s.down.Error()}
	case err != nil:
		return judgement{verdictCannotTell, "its receipt cannot be read: " + err.Error()}
	case found == nil && place != u.Place:
		return judgement{verdictCannotTell, fmt.Sprintf("its receipt is in the table bed_receipt in %s, but targetDataSource leads to %s", u.Place, cmp.Or(place, "none"))}
	case found == nil && u.Place == "" && u.Settings != s.target.Settings && !(u.SettingsOlder && u.Settings == s.target.OlderSettings):
		return judgement{verdictCannotTell, fmt.Sprintf("the entry was written with the settings %q, but targetDataSource has %q: its receipt may be elsewhere", u.Settings, s.target.Settings)}
	case found == nil && u.Leased:
		return judgement{verdictNotApplied, running}
	case found == nil:
		return judgement{verdictNotApplied, ""}
	case found.Fingerprint != u.Fingerprint:
		return judgement{verdictCannotTell, "another request was applied under its idempotency key"}
	case found.Void:
		return judgement{verdictNever, ""}
	default:
		return judgement{verdictApplied, ""}
	}
}

// find looks the receipt up, and gives the target up when it does not answer.
func (s *askedSource) find(ctx context.Context, u *txlog.Unit) (found *attempt.Found, place string, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	type answer struct {
		found *attempt.Found
		place string
		conn  driver.Conn
		err   error
		lost  bool
	}
	got := make(chan answer, 1)
	conn := s.conn
	s.conn = nil
	go func() { // a driver may not look at its context
		var a answer
		if a.conn = conn; conn == nil {
			a.conn, a.err = s.dial(ctx)
			a.lost = a.err != nil
		}
		if a.err == nil {
			a.found, a.err = attempt.FindReceipt(ctx, s.target.Dialect, a.conn, u.Receipt)
			if a.err == nil && a.found == nil && u.Place != "" {
				a.place, a.err = attempt.ReceiptPlace(ctx, s.target.Dialect, a.conn)
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
	case <-time.After(verifyTimeout + time.Second):
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
	case <-time.After(verifyTimeout):
	}
}
