package ops

import (
	"context"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/txlog"
)

// Detail is one entry whole.
type Detail struct {
	Entry
	Settings     string `json:"settings"`
	ReceiptPlace string `json:"receiptPlace,omitempty"`
	// Verdict is one of the values of the type Verdict.
	Verdict string `json:"verdict"`
	// VerdictText is the verdict for people, VerdictDetail and VerdictAdvice more of it.
	VerdictText   string `json:"verdictText"`
	VerdictDetail string `json:"verdictDetail"`
	VerdictAdvice string `json:"verdictAdvice"`
	// Next says in words what happens next, and when; NextIs is the same for programs.
	Next   string `json:"next"`
	NextIs Next   `json:"nextIs"`
	// Attempts are those that failed, the newest first, at most 100; MoreAttempts: there are more.
	Attempts     []Attempt `json:"attempts"`
	MoreAttempts bool      `json:"moreAttempts,omitempty"`
	// Siblings are the other entries of its soft transaction that are still in the log, at most 100.
	Siblings     []Entry `json:"siblings"`
	MoreSiblings bool    `json:"moreSiblings,omitempty"`
}

// Next is what happens next to an entry.
type Next string

// What can happen next.
const (
	// NextOperator: nothing, until an operator decides.
	NextOperator Next = "operator"
	// NextLease: its owner is working on it; at NextTry the job takes it over if
	// the owner is gone.
	NextLease Next = "lease"
	// NextResume: nothing, until its data source is resumed.
	NextResume Next = "resume"
	// NextJob: nothing, until a job runs.
	NextJob Next = "job"
	// NextReachable: the job delivers it once its data source is reachable.
	NextReachable Next = "reachable"
	// NextRound: the job delivers it in its next round.
	NextRound Next = "round"
	// NextLater: the job delivers it at NextTry.
	NextLater Next = "later"
)

// Attempt is an attempt that failed.
type Attempt struct {
	// Time is when it ended, by the log's clock.
	Time time.Time `json:"time"`
	// Origin is "caller", "sync retry" or "async job".
	Origin string `json:"origin"`
	// Class is what the error means: unknown, unreachable, retryable, refused, duplicate key.
	Class string `json:"class"`
	// Error is masked.
	Error string `json:"error"`
}

// mostShown is how many attempts and siblings of an entry are shown.
const mostShown = 100

// Entry gives one entry; id may be that of any of its rows. ErrNotFound.
func (s *reader) Entry(ctx context.Context, id string) (*Detail, error) {
	u, err := s.log.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	d := &Detail{Entry: s.entry(u), Settings: u.Settings, ReceiptPlace: u.Place, Siblings: []Entry{}}
	if d.Attempts, d.MoreAttempts, err = s.attempts(ctx, u, true); err != nil {
		return nil, err
	}
	if err := s.siblings(ctx, u, d); err != nil {
		return nil, err
	}
	if err := s.next(ctx, u, d); err != nil {
		return nil, err
	}
	v := NewVerifier(s.log, s.cfg)
	defer v.Close()
	judged, err := v.Judge(ctx, []*txlog.Unit{u})
	if err != nil {
		return nil, s.fault(err)
	}
	j := judged[0]
	d.Verdict, d.VerdictText, d.VerdictDetail, d.VerdictAdvice = string(j.Verdict), j.Short(), maskText(j.Detail, nil), maskText(j.Advice(u), nil)
	return d, nil
}

// attempts gives those that failed, the newest first.
func (s *reader) attempts(ctx context.Context, u *txlog.Unit, masked bool) (all []Attempt, more bool, err error) {
	found, err := s.journal.ReadAttempts(ctx, u.ID, mostShown+1)
	if err != nil && !errors.Is(err, journal.ErrOff) {
		return nil, false, s.fault(err)
	}
	if more = len(found) > mostShown; more {
		found = found[:mostShown]
	}
	all = make([]Attempt, len(found))
	values := valuesOf(u)
	for i, a := range found {
		all[i] = Attempt{Time: a.At.UTC(), Origin: a.Origin, Class: a.Class, Error: a.Err}
		if masked {
			all[i].Error = maskText(a.Err, values)
		}
	}
	return all, more, nil
}

func (s *reader) siblings(ctx context.Context, u *txlog.Unit, d *Detail) error {
	if u.TransactionID == u.ID || u.TransactionID == "" {
		return nil
	}
	page, err := s.Entries(ctx, Filter{Transaction: u.TransactionID}, Page{Limit: mostShown + 1})
	if err != nil {
		return err
	}
	d.MoreSiblings = page.Next != ""
	for _, e := range page.Entries {
		switch {
		case e.ID == u.ID:
		case len(d.Siblings) == mostShown:
			d.MoreSiblings = true
		default:
			d.Siblings = append(d.Siblings, e)
		}
	}
	return nil
}

// next finds what happens next to a unit.
func (s *reader) next(ctx context.Context, u *txlog.Unit, d *Detail) error {
	say := func(n Next, text string) error {
		d.NextIs, d.Next = n, text
		return nil
	}
	at := s.nextTry(u).UTC().Format(time.RFC3339)
	switch StateOf(u) {
	case Parked:
		return say(NextOperator, "nothing until an operator retries or discards it")
	case Leased:
		return say(NextLease, "it is being written or delivered; should its owner be gone, the job takes it over at "+at)
	}
	views, err := s.journal.ReadSources(ctx)
	if err != nil && !errors.Is(err, journal.ErrOff) {
		return s.fault(err)
	}
	alive, told := map[string]bool{}, err == nil
	for _, v := range views {
		if v.DataSource == "" && v.Alive {
			alive[v.Job] = true
		}
	}
	down := false
	for _, v := range views {
		if v.DataSource == u.DataSource && v.Job == "" && v.Paused {
			return say(NextResume, "nothing until the data source is resumed: it is paused")
		}
		down = down || v.DataSource == u.DataSource && alive[v.Job] && !v.Reachable
	}
	switch {
	case told && len(alive) == 0:
		return say(NextJob, "nothing until a job runs: none has told that it is alive")
	case down:
		return say(NextReachable, "the job delivers it once the data source is reachable; until then no try is counted")
	case !s.nextTry(u).After(u.ReadAt):
		return say(NextRound, "it is due: the job delivers it in its next round")
	}
	return say(NextLater, "the job delivers it at "+at)
}

// Revealed is what is masked elsewhere.
type Revealed struct {
	// Parameters are those of each statement.
	Parameters [][]Parameter `json:"parameters"`
	// Problems say why the parameters of statements cannot be read; empty: they
	// can.
	Problems  []string `json:"problems"`
	LastError string   `json:"lastError"`
	// Attempts are those of Detail, with their values.
	Attempts []Attempt `json:"attempts"`
}

// Reveal gives the values of an entry. It is audited before anything is given: an
// audit that cannot be written is an error.
func (s *reader) Reveal(ctx context.Context, id string, by By) (*Revealed, error) {
	if err := by.check(Reveal); err != nil {
		return nil, err
	}
	u, err := s.log.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := s.journal.AddAudit(ctx, by.record(Reveal, u.ID, 0)); err != nil {
		return nil, noTables(s.fault(err))
	}
	out := &Revealed{Parameters: make([][]Parameter, len(u.Statements)), Problems: make([]string, len(u.Statements)), LastError: u.LastError}
	for i, statement := range u.Statements {
		if out.Parameters[i], err = Parameters(statement, true); err != nil {
			out.Parameters[i], out.Problems[i] = []Parameter{}, err.Error()
		}
	}
	if out.Attempts, _, err = s.attempts(ctx, u, false); err != nil {
		return nil, err
	}
	return out, nil
}
