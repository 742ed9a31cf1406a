package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/safetext"
)

// Action is a decision about entries or data sources, or another act in the audit.
type Action = journal.Action

// The actions.
const (
	// Retry makes entries due now, resets their tries and unparks them.
	Retry Action = "retry"
	// Park leaves entries for an operator.
	Park Action = "park"
	// Discard erases entries. It needs a reason.
	Discard Action = "discard"
	// Skip parks the first entry under an order key and lets the entries behind it pass. It needs a
	// reason.
	Skip Action = "skip"

	// Amend replaces the text or the parameters of a statement, see [Store.Amend]. It needs a reason.
	Amend Action = "amend"

	// Compensate compensates a group, see [Store.Compensate]. It needs a reason.
	Compensate Action = "compensate"

	// These appear only in the audit.
	Pause  Action = "pause"
	Resume Action = "resume"
	Limit  Action = "limit"
	Reveal Action = "reveal"
	Try    Action = "try"
)

// Check refuses a missing name or reason: ErrInvalid.
func (by By) Check(a Action) error {
	switch {
	case strings.TrimSpace(by.Who) == "" || safetext.Line(by.Who) != by.Who || len(by.Who) > journal.MaxWho:
		return fmt.Errorf("%w: who must be a text of 1 to %d bytes without control characters", ErrInvalid, journal.MaxWho)
	case !storable(by.Reason) || utf8.RuneCountInString(by.Reason) > maxReason:
		return fmt.Errorf("%w: the reason must be valid UTF-8 without NUL, at most %d characters", ErrInvalid, maxReason)
	case NeedsReason(a) && strings.TrimSpace(by.Reason) == "":
		return fmt.Errorf("%w: to %s needs a reason", ErrInvalid, a)
	}
	return nil
}

// NeedsReason reports whether a demands a reason.
func NeedsReason(a Action) bool {
	return slices.Contains([]Action{Discard, Amend, Skip, Compensate}, a)
}

// maxReason bounds a reason, in characters.
const maxReason = 1000

func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// record makes the audit record of an action.
func (by By) record(a Action, what string, units int) journal.Record {
	return journal.Record{ID: journal.NewID(), Who: by.Who, Action: a, What: what, Count: units, Reason: by.Reason}
}

var decisions = map[Action]entry.Decision{Retry: entry.DecideRetry, Park: entry.DecidePark, Discard: entry.DecideDiscard, Skip: entry.DecideSkip}

// Act applies an action to one entry; id may be the id of any of its rows. ErrInvalid, or txlog's
// ErrNotFound, ErrLeased, ErrGroup, ErrNotFirst.
func (s *Store) Act(ctx context.Context, a Action, id string, by By) error {
	d, err := decision(a, by)
	if err != nil {
		return err
	}
	u, err := s.log.Get(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.decide(ctx, d, []string{u.ID}, nil, func(entry.Decided) (journal.Record, error) { return by.record(a, u.ID, 1), nil })
	return err
}

func decision(a Action, by By) (entry.Decision, error) {
	d, ok := decisions[a]
	if !ok {
		return 0, fmt.Errorf("%w: the action is %.40q, but must be retry, park, discard or skip", ErrInvalid, a)
	}
	return d, by.Check(a)
}

// decide carries a decision out and audits it, in one local transaction.
func (s *Store) decide(ctx context.Context, d entry.Decision, ids []string, check func(*entry.Unit) bool, record func(entry.Decided) (journal.Record, error)) (entry.Decided, error) {
	also, err := s.audited(record)
	if err != nil {
		return entry.Decided{}, err
	}
	return s.sql.Decide(ctx, d, ids, check, also)
}

// audited returns the function that audits a decision in its transaction. It fails at once if the
// audit cannot be written.
func (s *Store) audited(record func(entry.Decided) (journal.Record, error)) (also func(entry.Decided, func(string, ...any) error) error, err error) {
	if _, _, err := s.journal.AuditStatement(journal.Record{}); err != nil {
		return nil, noTables(err)
	}
	id := journal.NewID() // of the record, which tells a repetition that it was made
	return func(done entry.Decided, exec func(string, ...any) error) error {
		r, err := record(done)
		if err != nil {
			return err
		}
		r.ID = id
		statement, args, err := s.journal.AuditStatement(r)
		if err != nil {
			return noTables(err)
		}
		return s.fault(exec(statement, args...))
	}, nil
}

func noTables(err error) error {
	if errors.Is(err, journal.ErrOff) {
		return fmt.Errorf("%w: %w", ErrNoTables, err)
	}
	return err
}

// Compensated describes a group being compensated.
type Compensated struct {
	TransactionID string `json:"transactionId"`
	// Parts is the number of parts, DataSource the first one to compensate.
	Parts      int    `json:"parts"`
	DataSource string `json:"dataSource"`
}

// Compensate compensates a group: jobs undo its applied parts, the last part first, and the others
// will never be applied. id is the soft transaction's id or the id of any of its entries. It needs
// a reason, which is audited in the same local transaction. A half-compensated group resumes.
// ErrInvalid, or txlog's ErrNotFound, ErrLeased (its compensation is running), ErrUnconfirmed.
func (s *Store) Compensate(ctx context.Context, id string, by By) (*Compensated, error) {
	if err := by.Check(Compensate); err != nil {
		return nil, err
	}
	if u, err := s.log.Get(ctx, id); err == nil && u.Group() {
		id = u.TransactionID
	}
	statement, args, err := s.journal.AuditStatement(by.record(Compensate, id, 1))
	if err != nil {
		return nil, noTables(err)
	}
	k, err := s.sql.CompensateAlso(ctx, id, 0, "compensated by an operator: "+by.Reason, func(exec func(string, ...any) error) error {
		return s.fault(exec(statement, args...))
	})
	if err != nil {
		return nil, err
	}
	return &Compensated{TransactionID: k.ID, Parts: len(k.Undo.Parts), DataSource: k.DataSource}, nil
}

// MaxBulk is the most entries changed at once.
const MaxBulk = 100_000

// Selection holds the entries that a filter selected at the time of counting. [Store.ActAll]
// changes these entries and no others, regardless of later arrivals. No condition on the rows could
// select the same set afterwards: parking becomes visible at its commit, and a waiting entry may
// have been tried since.
type Selection struct {
	Filter Filter
	// At is the log's time of counting.
	At time.Time
	// IDs are the entries, in order, except those being delivered at that moment. More reports more
	// than MaxBulk entries; IDs is then empty.
	IDs  []string
	More bool
}

// Select counts the entries matching f, for [Store.ActAll].
func (s *Store) Select(ctx context.Context, f Filter) (*Selection, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	sel := &Selection{Filter: f, At: now}
	if f.State == Leased {
		return sel, f.Check()
	}
	f.settled = true
	sel.IDs, _, err = s.find(ctx, &f, Page{Limit: MaxBulk + 1}, time.Time{})
	if sel.More = len(sel.IDs) > MaxBulk; sel.More {
		sel.IDs = nil
	}
	return sel, err
}

// Done is the result of a bulk action. Gone counts the entries delivered or discarded since the
// selection, Left those being delivered or no longer matching the filter.
type Done = entry.Decided

// ActAll applies an action to all entries of a selection, except those now gone or no longer
// matching its filter, in one local transaction. It returns ErrInvalid for too many entries.
func (s *Store) ActAll(ctx context.Context, a Action, sel *Selection, by By) (Done, error) {
	d, err := decision(a, by)
	if err == nil && a == Skip {
		err = fmt.Errorf("%w: entries are skipped one by one", ErrInvalid)
	}
	switch {
	case err != nil:
		return Done{}, err
	case sel.More:
		return Done{}, fmt.Errorf("%w: at most %d entries are changed at once: narrow the filter", ErrInvalid, MaxBulk)
	case len(sel.IDs) == 0:
		return Done{}, nil
	}
	return s.decide(ctx, d, sel.IDs, sel.Filter.still, func(done entry.Decided) (journal.Record, error) {
		what, err := marshal(sel.view(done))
		r := by.record(a, what, len(done.Changed))
		r.Whole = true
		return r, err
	})
}

// still reports whether f still selects a unit, as far as the answer may have changed since.
func (f *Filter) still(u *entry.Unit) bool {
	return (f.State == "" || StateOf(u) == f.State) && f.judge(u)
}

// MaxPerSecond is the highest limit.
const MaxPerSecond = 1_000_000

// Control changes how jobs deliver to a data source and audits that, in one local transaction.
// Pause stops all deliveries until Resume; running deliveries finish. Limit bounds the deliveries
// per second by all jobs together; 0 lifts the limit. ErrUnknownDataSource.
func (s *Store) Control(ctx context.Context, a Action, dataSource string, perSecond int, by By) error {
	var paused *bool
	var limit *int
	switch pause := a == Pause; a {
	case Pause, Resume:
		paused = &pause
	case Limit:
		if perSecond < 0 || perSecond > MaxPerSecond {
			return fmt.Errorf("%w: the limit per second is %d, but must be from 0 (none) to %d", ErrInvalid, perSecond, MaxPerSecond)
		}
		limit = &perSecond
		by.Reason = strings.TrimSuffix(fmt.Sprintf("%d per second: %s", perSecond, by.Reason), ": ")
	default:
		return fmt.Errorf("%w: the action is %.40q, but must be pause, resume or limit", ErrInvalid, a)
	}
	if err := by.Check(a); err != nil {
		return err
	}
	if err := s.known(ctx, dataSource); err != nil {
		return err
	}
	set, setArgs, err := s.journal.ControlStatement(dataSource, paused, limit)
	if err != nil {
		return noTables(err)
	}
	audit, err := s.audited(func(entry.Decided) (journal.Record, error) { return by.record(a, dataSource, 0), nil })
	if err != nil {
		return err
	}
	_, err = s.sql.Decide(ctx, 0, nil, nil, func(done entry.Decided, exec func(string, ...any) error) error {
		if err := audit(done, exec); err != nil {
			return err
		}
		return s.fault(exec(set, setArgs...))
	})
	return err
}

// known returns ErrUnknownDataSource unless the configuration, the log, its activity or a job knows
// the data source.
func (s *Store) known(ctx context.Context, name string) error {
	if name == "" || len(name) > 255 || !storable(name) {
		return fmt.Errorf("%w: %.255q", ErrUnknownDataSource, name)
	}
	_, usable := s.cfg.Targets[name]
	if _, unusable := s.cfg.Problems[name]; usable || unusable {
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
