package ops

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/target"
)

// Detail is one entry whole.
type Detail struct {
	Entry
	// Kind is the key of its [Kind] of error; empty without an error.
	Kind     string `json:"kind"`
	Settings string `json:"settings"`
	// Session is what [SessionOf] returns.
	Session      string `json:"session,omitempty"`
	ReceiptPlace string `json:"receiptPlace,omitempty"`
	// Verdict is one of the values of the type Verdict.
	Verdict string `json:"verdict"`
	// VerdictText is the verdict for people, VerdictDetail and VerdictAdvice more of it.
	VerdictText   string `json:"verdictText"`
	VerdictDetail string `json:"verdictDetail"`
	VerdictAdvice string `json:"verdictAdvice"`
	// Next describes the next step in words, with its time; NextIs is the same for programs.
	Next   string `json:"next"`
	NextIs Next   `json:"nextIs"`
	// Attempts are the failed ones, newest first, at most 100. MoreAttempts reports that there are
	// more.
	Attempts     []Attempt `json:"attempts"`
	MoreAttempts bool      `json:"moreAttempts,omitempty"`
	// Siblings are the other logged entries of its soft transaction, at most 100.
	Siblings     []Entry `json:"siblings"`
	MoreSiblings bool    `json:"moreSiblings,omitempty"`
	// Revealed reports that parameters are included and errors show their values.
	Revealed bool `json:"revealed"`
}

// Next is the next step of an entry.
type Next string

// The next steps, explained by NextTexts.
const (
	NextOperator  Next = "operator"
	NextLease     Next = "lease"
	NextResume    Next = "resume"
	NextJob       Next = "job"
	NextReachable Next = "reachable"
	NextRound     Next = "round"
	NextLater     Next = "later"
	NextGroup     Next = "group"
	NextInOrder   Next = "order"
)

// NextTexts are the steps in words. The time follows for NextLease and NextLater.
var NextTexts = map[Next]string{
	NextOperator:  "Nothing, until an operator decides.",
	NextLease:     "Its owner is delivering it; if that one is gone, the job takes it over at",
	NextResume:    "Nothing, until its data source is resumed.",
	NextJob:       "Nothing, until a job runs.",
	NextReachable: "The job delivers it once its data source is reachable.",
	NextRound:     "The job delivers it in its next round.",
	NextLater:     "The job delivers it at",
	NextGroup:     "Nothing, unless its group is compensated.",
	NextInOrder:   "Nothing, until the entries before it under its order key are delivered, discarded or skipped.",
}

// Attempt is a failed attempt. Its error is masked, unless the entry is revealed.
type Attempt = journal.Attempt

// mostShown is how many attempts and siblings of an entry are shown.
const mostShown = 100

// Entry returns one entry; id may be the id of any of its rows. txlog.ErrNotFound.
func (s *Store) Entry(ctx context.Context, id string) (*Detail, error) {
	u, err := s.log.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.detail(ctx, u, false)
}

// Reveal returns one entry with its values. It writes the audit first, and fails if it cannot.
func (s *Store) Reveal(ctx context.Context, id string, by By) (*Detail, error) {
	if err := by.Check(Reveal); err != nil {
		return nil, err
	}
	u, err := s.log.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := s.journal.AddAudit(ctx, by.record(Reveal, u.ID, 0)); err != nil {
		return nil, noTables(s.fault(err))
	}
	return s.detail(ctx, u, true)
}

// SessionOf returns the resolved session of an entry's writer. Without values, those of settings of
// the application's own are left out.
func SessionOf(u *entry.Unit, values bool) string {
	if values {
		return u.Session
	}
	return target.Masked(u.Session)
}

func (s *Store) detail(ctx context.Context, u *entry.Unit, reveal bool) (d *Detail, err error) {
	d = &Detail{Entry: s.entry(u), Settings: u.Settings, Session: SessionOf(u, reveal), ReceiptPlace: u.Place, Siblings: []Entry{}, Revealed: reveal}
	if u.LastError != "" {
		d.Kind = kindOf(u).key()
	}
	attempts, err := s.journal.ReadAttempts(ctx, u.ID, mostShown+1)
	if err != nil && !errors.Is(err, journal.ErrOff) {
		return nil, s.fault(err)
	}
	d.Attempts, d.MoreAttempts = append([]Attempt{}, attempts[:min(len(attempts), mostShown)]...), len(attempts) > mostShown
	if reveal {
		d.LastError, d.Cause = u.LastError, EntryOf(u, s.cfg.MinAge).Cause
		for i, statement := range u.Statements {
			params, _ := Parameters(statement, true)
			d.Statements[i].Parameters, d.Statements[i].TypedParameters = append([]Parameter{}, params...), statement.Params
		}
	} else {
		values := valuesOf(u)
		for i, a := range d.Attempts {
			d.Attempts[i].Err = errmask.Mask(a.Err, values...)
		}
	}
	if err := s.siblings(ctx, u, d); err != nil {
		return nil, err
	}
	if d.NextIs, err = s.next(ctx, u); err != nil {
		return nil, err
	}
	if d.Next = NextTexts[d.NextIs]; d.NextIs == NextLease || d.NextIs == NextLater {
		d.Next += " " + d.NextTry.Format(time.RFC3339)
	}
	judged, err := s.judge(ctx, u)
	if err != nil {
		return nil, s.fault(err)
	}
	j := judged[0]
	d.Verdict, d.VerdictText, d.VerdictDetail, d.VerdictAdvice = string(j.Verdict), j.Short(), errmask.Mask(j.Detail), errmask.Mask(j.Advice(u))
	return d, nil
}

func (s *Store) siblings(ctx context.Context, u *entry.Unit, d *Detail) error {
	if u.TransactionID == u.ID && u.Undo == nil || u.TransactionID == "" {
		return nil
	}
	page, err := s.Entries(ctx, Filter{Transaction: u.TransactionID}, Page{Limit: mostShown + 1})
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(page.Entries, func(e Entry) bool { return e.ID == u.ID })
	d.Siblings = others[:min(len(others), mostShown)]
	d.MoreSiblings = page.Next != "" || len(others) > mostShown
	return nil
}

// next returns the next step of a unit.
func (s *Store) next(ctx context.Context, u *entry.Unit) (Next, error) {
	switch {
	case u.Parked:
		return NextOperator, nil
	case u.Leased:
		return NextLease, nil
	case GroupOf(u) == GroupRecorded:
		return NextGroup, nil
	case u.Behind != "":
		return NextInOrder, nil
	}
	views, err := s.journal.ReadSources(ctx)
	if err != nil && !errors.Is(err, journal.ErrOff) {
		return "", s.fault(err)
	}
	alive, down := err != nil, false
	for _, v := range views {
		switch {
		case v.DataSource == "":
			alive = alive || v.Alive
		case v.DataSource != u.DataSource:
		case v.Job == "" && v.Paused:
			return NextResume, nil
		case v.Alive && !v.Reachable:
			down = true
		}
	}
	switch {
	case !alive:
		return NextJob, nil
	case down:
		return NextReachable, nil
	case !NextTry(u, s.cfg.MinAge).After(u.ReadAt):
		return NextRound, nil
	}
	return NextLater, nil
}

// mask replaces a value in a displayed error.
const mask = "?"

// maskedError returns the last error of a unit for users who may not see values.
func maskedError(u *entry.Unit) string { return errmask.Mask(u.LastError, valuesOf(u)...) }

// valuesOf returns the parameters of a unit as a database could quote them.
func valuesOf(u *entry.Unit) (all []string) {
	for s := range strings.SplitSeq(u.Session, ";") {
		if _, value, _ := strings.Cut(s, "="); target.Masked(s) != s {
			value, _ = url.PathUnescape(value)
			all = append(all, strings.TrimPrefix(value, "'"))
		}
	}
	for _, s := range u.Statements {
		args, err := s.Args()
		if err != nil {
			continue
		}
		for _, a := range args {
			switch x := a.Value.(type) {
			case nil, bool:
			case []byte:
				all = append(all, string(x))
			default:
				all = append(all, fmt.Sprint(x))
			}
		}
	}
	return all
}
