package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/txlog"
)

// Action is what is decided for entries or data sources, and what an audit record tells.
type Action string

// The actions.
const (
	// Retry makes entries due now, with their tries reset and not parked any more.
	Retry Action = "retry"
	// Park leaves entries for an operator.
	Park Action = "park"
	// Discard erases entries for good. It needs a reason.
	Discard Action = "discard"

	// These are only in the audit.
	Pause  Action = "pause"
	Resume Action = "resume"
	Limit  Action = "limit"
	Reveal Action = "reveal"
	Try    Action = "try"
)

// check refuses what has no name or no reason.
func (by By) check(a Action) error {
	switch {
	case strings.TrimSpace(by.Who) == "" || !storable(by.Who) || len(by.Who) > journal.MaxWho:
		return fmt.Errorf("%w: who must be a text of 1 to %d bytes", ErrInvalid, journal.MaxWho)
	case !storable(by.Reason) || len(by.Reason) > journal.MaxReason:
		return fmt.Errorf("%w: the reason must be valid UTF-8 without NUL, at most %d bytes", ErrInvalid, journal.MaxReason)
	case a == Discard && strings.TrimSpace(by.Reason) == "":
		return fmt.Errorf("%w: to discard needs a reason", ErrInvalid)
	}
	return nil
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// record makes the record of what is done.
func (by By) record(a Action, what string, units int) journal.Record {
	return journal.Record{ID: journal.NewID(), Who: by.Who, Action: string(a), What: what, Units: units, Reason: by.Reason}
}

var decisions = map[Action]txlog.Decision{Retry: txlog.DecideRetry, Park: txlog.DecidePark, Discard: txlog.DecideDiscard}

// Act does it to one entry; id may be that of any of its rows. ErrNotFound,
// ErrLeased, ErrInvalid.
func (s *actor) Act(ctx context.Context, a Action, id string, by By) error {
	d, err := decision(a, by)
	if err != nil {
		return err
	}
	u, err := s.log.Get(ctx, id)
	if err != nil {
		return err
	}
	return s.decide(ctx, d, []string{u.ID}, nil, by.record(a, u.ID, 1))
}

func decision(a Action, by By) (txlog.Decision, error) {
	d, ok := decisions[a]
	if !ok {
		return 0, fmt.Errorf("%w: the action is %.40q, but must be retry, park or discard", ErrInvalid, a)
	}
	return d, by.check(a)
}

// decide carries a decision out and audits it, in one local transaction.
func (s *actor) decide(ctx context.Context, d txlog.Decision, ids []string, check func(*txlog.Unit) error, r journal.Record) error {
	statement, args, err := s.journal.AuditStatement(r)
	if err != nil {
		return noTables(err)
	}
	return s.log.Decide(ctx, d, ids, check, func(exec func(string, ...any) error) error { return s.fault(exec(statement, args...)) })
}

func noTables(err error) error {
	if errors.Is(err, journal.ErrOff) {
		return fmt.Errorf("%w: %w", ErrNoTables, err)
	}
	return err
}

// MaxBulk is how many entries at most are changed at once.
const MaxBulk = 100_000

// ActAll does it to all entries that f selects, in one local transaction, if they
// are exactly count; else to none: ConflictError. More than MaxBulk are
// ErrInvalid.
func (s *actor) ActAll(ctx context.Context, a Action, f Filter, count int, by By) error {
	d, err := decision(a, by)
	if err != nil {
		return err
	}
	if count < 0 || count > MaxBulk {
		return fmt.Errorf("%w: the count must be from 0 to %d: narrow the filter", ErrInvalid, MaxBulk)
	}
	ids, err := s.all(ctx, f, count)
	if err != nil {
		return err
	}
	if len(ids) != count {
		return &ConflictError{Counted: count, Matches: len(ids)}
	}
	if count == 0 {
		return nil
	}
	what, err := json.Marshal(f.view())
	if err != nil {
		return err
	}
	// Once they are locked they are checked again: if one has changed since they
	// were counted, they are another set.
	changed := &ConflictError{Counted: count, Matches: count}
	err = s.decide(ctx, d, ids, func(u *txlog.Unit) error {
		switch {
		case u.Leased:
			changed.Leased++
			return changed
		case !f.still(u):
			changed.Matches--
			return changed
		}
		return nil
	}, by.record(a, string(what), count))
	if errors.Is(err, ErrNotFound) {
		changed.Matches--
		return changed
	}
	return err
}

// all gives the ids of what f selects; if these are more than count, at least one
// more than count.
func (s *actor) all(ctx context.Context, f Filter, count int) (ids []string, err error) {
	for after := ""; ; {
		found, err := s.find(ctx, f, after, countedAtOnce, noLimit)
		if err != nil {
			return nil, err
		}
		ids = append(ids, found.ids...)
		if after = found.next; after == "" || len(ids) > count {
			return ids, nil
		}
	}
}

// still reports whether f still selects a unit, as far as that may have changed
// since it was found.
func (f *Filter) still(u *txlog.Unit) bool {
	return (f.State == "" || StateOf(u) == f.State) && f.judge(u)
}

// filterView is a filter as the audit keeps it.
type filterView struct {
	DataSource  string `json:"dataSource,omitempty"`
	State       State  `json:"state,omitempty"`
	Text        string `json:"text,omitempty"`
	Transaction string `json:"transaction,omitempty"`
	OlderThan   string `json:"olderThan,omitempty"`
	Kind        string `json:"kind,omitempty"`
}

func (f *Filter) view() filterView {
	v := filterView{DataSource: f.DataSource, State: f.State, Text: f.Text, Transaction: f.Transaction}
	if f.OlderThan > 0 {
		v.OlderThan = f.OlderThan.String()
	}
	if f.Reveal && f.Text != "" {
		v.Text = mask // who reads the audit may not see values
	}
	if k, err := readKind(f.Kind); err == nil {
		v.Kind = k.Text
		v.DataSource = k.DataSource
	}
	return v
}

// Pause has no job deliver to the data source until it is resumed. What is being delivered is
// finished. ErrUnknownDataSource.
func (s *actor) Pause(ctx context.Context, dataSource string, by By) error {
	yes := true
	return s.control(ctx, Pause, dataSource, &yes, nil, by)
}

// Resume ends a pause.
func (s *actor) Resume(ctx context.Context, dataSource string, by By) error {
	no := false
	return s.control(ctx, Resume, dataSource, &no, nil, by)
}

// MaxPerSecond is the highest limit.
const MaxPerSecond = 1_000_000

// Limit bounds the deliveries to the data source per second by all jobs together; 0 lifts it.
func (s *actor) Limit(ctx context.Context, dataSource string, perSecond int, by By) error {
	if perSecond < 0 || perSecond > MaxPerSecond {
		return fmt.Errorf("%w: the limit per second is %d, but must be from 0 (none) to %d", ErrInvalid, perSecond, MaxPerSecond)
	}
	if by.Reason == "" {
		by.Reason = fmt.Sprintf("%d per second", perSecond)
	} else {
		by.Reason = fmt.Sprintf("%d per second: %s", perSecond, by.Reason)
	}
	return s.control(ctx, Limit, dataSource, nil, &perSecond, by)
}

// control decides something for a data source and audits it, in one local
// transaction.
func (s *actor) control(ctx context.Context, a Action, dataSource string, paused *bool, perSecond *int, by By) error {
	if err := by.check(a); err != nil {
		return err
	}
	if err := s.known(ctx, dataSource); err != nil {
		return err
	}
	set, setArgs, err := s.journal.ControlStatement(dataSource, paused, perSecond)
	if err != nil {
		return noTables(err)
	}
	audit, auditArgs, err := s.journal.AuditStatement(by.record(a, dataSource, 0))
	if err != nil {
		return noTables(err)
	}
	return s.log.Decide(ctx, 0, nil, nil, func(exec func(string, ...any) error) error {
		if err := exec(audit, auditArgs...); err != nil {
			return s.fault(err)
		}
		return s.fault(exec(set, setArgs...))
	})
}

// known finds out whether there is such a data source: it is configured, or the
// log, its activity or a job has it.
func (s *actor) known(ctx context.Context, name string) error {
	if name == "" || len(name) > 255 || !storable(name) {
		return fmt.Errorf("%w: %.255q", ErrUnknownDataSource, name)
	}
	if _, ok := s.cfg.Targets[name]; ok {
		return nil
	}
	if _, ok := s.cfg.Problems[name]; ok {
		return nil
	}
	var n int
	if err := s.row(ctx, []any{&n}, `SELECT COUNT(*) FROM (SELECT 1 AS one FROM transaction_log WHERE parked IN (0, 1) AND data_source = ? LIMIT 1) AS t`, name); err != nil || n > 0 {
		return err
	}
	if err := s.row(ctx, []any{&n}, `SELECT COUNT(*) FROM bed_data_source WHERE data_source = ?`, name); err != nil || n > 0 {
		return err
	}
	return fmt.Errorf("%w: %q", ErrUnknownDataSource, name)
}
