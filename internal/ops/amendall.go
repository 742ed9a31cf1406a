package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
)

// AmendedAll is the result of a bulk amendment.
type AmendedAll struct {
	// Done counts the entries left alone in Left. Kept says why they were.
	Done `json:"-"`
	// Kept are the reasons for leaving entries alone, the most frequent first.
	Kept []Kept `json:"kept"`
	// Statement is the number of the replaced statement, from 1.
	Statement int `json:"statement"`
	// Kind is the key of the entries with the new text.
	Kind string `json:"kind"`
	// Tried is the entry tried in its amended form before any change, Trial the result. Untried
	// says why there was no trial: it is a message, or the target cannot be asked.
	Tried   string `json:"tried"`
	Trial   *Trial `json:"trial"`
	Untried string `json:"untried"`
}

// Kept is a reason for leaving entries alone.
type Kept struct {
	Why     string `json:"why"`
	Entries int    `json:"entries"`
	// Oldest is the first of them.
	Oldest string `json:"oldest"`
}

// amending is an entry to amend.
type amending struct {
	u       *entry.Unit
	to      entry.Amendment
	verdict Verdict
}

// AmendAll amends the entries of a selection, of one kind and with one text, in one local
// transaction; the conditions of [Store.Amend] apply to each. It first tries the first amended
// entry: if the target refuses it, nothing changes (ErrNotAmendable). With dry it stops there.
// Entries that cannot be amended stay parked as they are. ErrInvalid, ErrNoTarget, ErrNotAmendable.
func (s *Store) AmendAll(ctx context.Context, sel *Selection, a Amendment, by By, dry bool) (*AmendedAll, error) {
	if err := by.Check(Amend); err != nil {
		return nil, err
	}
	switch {
	case sel.Filter.Kind == "":
		return nil, fmt.Errorf("%w: entries are amended by their kind: name one", ErrInvalid)
	case sel.More || len(sel.IDs) > keptIDs:
		return nil, fmt.Errorf("%w: at most %d entries are amended at once: narrow the filter", ErrInvalid, keptIDs)
	}
	out := &AmendedAll{Kept: []Kept{}}
	all, err := s.toAmend(ctx, sel, a, out)
	if err != nil || len(all) == 0 {
		return out, err
	}
	out.Statement = all[0].to.No + 1
	out.Kind = textKind(all[0].u.DataSource, all[0].to.To.SQL).key()
	if err := s.tryAmended(ctx, all[0], by, out); err != nil || dry {
		for _, one := range all {
			out.Changed = append(out.Changed, one.u.ID)
		}
		return out, err
	}
	if all, err = s.supersedeAll(ctx, all, out); err != nil || len(all) == 0 {
		return out, err
	}
	units, as := map[string]*entry.Unit{}, map[string]entry.Amendment{}
	for _, one := range all {
		units[one.u.ID], as[one.u.ID] = one.u, one.to
	}
	before := out.Done
	also, err := s.audited(func(done entry.Decided) (journal.Record, error) {
		done.Gone, done.Left = before.Gone+done.Gone, before.Left+done.Left
		return by.amended(sel, a, all, done)
	})
	if err != nil {
		return nil, err
	}
	err = s.answer(ctx, func(ctx context.Context) error {
		done, err := s.sql.Amend(ctx, as, true, func(u *entry.Unit) error { return same(units[u.ID])(u) }, also)
		out.Done = Done{Changed: done.Changed, Gone: before.Gone + done.Gone, Left: before.Left + done.Left}
		return err
	})
	if err != nil {
		return nil, err
	}
	if n := out.Left - before.Left; n > 0 {
		out.Kept = append(out.Kept, Kept{Why: "it was changed meanwhile: look at it again", Entries: n})
	}
	return out, nil
}

// keep leaves an entry alone.
func (out *AmendedAll) keep(u *entry.Unit, why error) {
	text := strings.TrimPrefix(why.Error(), ErrNotAmendable.Error()+": ")
	out.Left++
	i := slices.IndexFunc(out.Kept, func(k Kept) bool { return k.Why == text })
	if i < 0 {
		i, out.Kept = len(out.Kept), append(out.Kept, Kept{Why: text, Oldest: u.ID})
	}
	out.Kept[i].Entries++
}

// toAmend returns the amendable entries of a selection, and keeps the others.
func (s *Store) toAmend(ctx context.Context, sel *Selection, a Amendment, out *AmendedAll) (all []amending, err error) {
	k, err := readKind(sel.Filter.Kind)
	if err != nil {
		return nil, err
	}
	var units []*entry.Unit
	if err := s.answer(ctx, func(ctx context.Context) (err error) { units, err = s.sql.Units(ctx, sel.IDs); return err }); err != nil {
		return nil, err
	}
	out.Gone = len(sel.IDs) - len(units)
	verdicts, err := s.verdicts(ctx, units)
	if err != nil {
		return nil, err
	}
	texts := map[string]bool{}
	for i, u := range units {
		why := amendable(u)
		if why == nil {
			why = verdicts[i].amendable(u)
		}
		if why == nil && !sel.Filter.still(u) {
			why = fmt.Errorf("%w: it does not match the filter any more", ErrNotAmendable)
		}
		if why != nil {
			out.keep(u, why)
			continue
		}
		one := amending{u: u, verdict: verdicts[i].Verdict}
		to := a
		if to.Statement == 0 && k.Code == ofText {
			to.Statement = k.holding(u) + 1
		}
		if one.to, err = to.of(u); err != nil {
			return nil, fmt.Errorf("%w (entry %s)", err, u.ID)
		}
		old := u.Statements[one.to.No]
		if texts[old.SQL] = true; len(texts) > 1 {
			return nil, fmt.Errorf("%w: these entries hold different texts, such as those of %s and %s: narrow the filter by a part of the text", ErrInvalid, all[0].u.ID, u.ID)
		}
		if _, err := replacing(u, one.to); err != nil {
			out.keep(u, err)
			continue
		}
		all = append(all, one)
	}
	fit := map[place]map[int]bool{}
	for i := range all {
		if err := s.fitsAll(ctx, &all[i], fit, out); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// fitsAll has each target parse a text, once for each session and number of parameters.
func (s *Store) fitsAll(ctx context.Context, one *amending, fit map[place]map[int]bool, out *AmendedAll) error {
	args, err := one.to.To.Args()
	if err != nil {
		return fmt.Errorf("%w: the parameters of entry %s cannot be read", ErrInvalid, one.u.ID)
	}
	target, err := s.cfg.target(one.u)
	if err != nil {
		return err
	}
	if err := takesPlace(target.Dialect, one.u.Statements[one.to.No], &one.to.To); err != nil {
		return err
	}
	at := place{one.u.DataSource, one.u.Settings, one.u.Session}
	if fit[at][len(args)] {
		return nil
	}
	if err := deliverable(ctx, target, one.to.To); err != nil {
		return err
	}
	unprepared, err := s.fits(ctx, target, one.to.To)
	if err != nil {
		return err
	}
	if fit[at] == nil {
		fit[at] = map[int]bool{}
	}
	fit[at][len(args)] = true
	if unprepared != "" {
		out.Untried = unprepared
	}
	return nil
}

// tryAmended runs an amended entry in a local transaction and rolls it back. It returns an error if
// the target refuses the entry.
func (s *Store) tryAmended(ctx context.Context, one amending, by By, out *AmendedAll) error {
	if out.Untried != "" { // it could not be asked at all
		return nil
	}
	u := *one.u
	u.Statements = slices.Clone(u.Statements)
	u.Statements[one.to.No] = one.to.To
	trial, err := s.tryUnit(ctx, &u, by)
	switch {
	case errors.Is(err, ErrInvalid) || errors.Is(err, ErrTarget):
		out.Untried = strings.TrimPrefix(err.Error(), ErrInvalid.Error()+": ")
		return nil
	case err != nil:
		return err
	}
	out.Tried, out.Trial = u.ID, trial
	if trial.Class == dialect.Refused.String() || trial.Class == dialect.Duplicate.String() {
		return &explained{"ops: the entry cannot be amended: nothing was changed, because the first one, " + u.ID + ", would be refused: " + s.cfg.Clean(trial.Error), ErrNotAmendable}
	}
	return nil
}

// supersedeAll gives a new receipt to the entries that need one, and keeps those it could not
// supersede. It does not ask a silent target twice.
func (s *Store) supersedeAll(ctx context.Context, all []amending, out *AmendedAll) (left []amending, err error) {
	silent := map[string]error{}
	for _, one := range all {
		if one.u.InDoubt || one.verdict == NeverApplied {
			target, err := s.cfg.target(one.u)
			if err != nil {
				return nil, err
			}
			if err = silent[one.u.DataSource]; err == nil {
				one.to.Receipt, err = s.supersede(ctx, target, one.u, one.verdict)
			}
			if errors.As(err, new(*explained)) {
				silent[one.u.DataSource] = err
			}
			if err != nil {
				out.keep(one.u, err)
				continue
			}
		}
		left = append(left, one)
	}
	return left, nil
}

// amended makes the audit record of a bulk amendment. All changed entries had the same text.
func (by By) amended(sel *Selection, a Amendment, all []amending, done Done) (journal.Record, error) {
	v := sel.view(done)
	old, to := all[0].u.Statements[all[0].to.No], all[0].to.To
	re := Replaced{Statement: all[0].to.No + 1, Old: Text{SQL: old.SQL}, New: Text{SQL: to.SQL}, Bulk: &v}
	if strings.TrimSpace(a.Parameters) != "" {
		params, changed := []json.RawMessage{}, map[string]bool{}
		for _, id := range done.Changed {
			changed[id] = true
		}
		for _, one := range all {
			if changed[one.u.ID] {
				params = append(params, textOf(one.u.Statements[one.to.No]).Parameters)
			}
		}
		re.Old.Parameters, _ = json.Marshal(params)
		re.New.Parameters = textOf(to).Parameters
	}
	what, err := marshal(re)
	r := by.record(Amend, what, len(done.Changed))
	r.Whole = true
	return r, err
}
