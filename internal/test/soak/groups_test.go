package soak

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
)

// transfer moves money from one target to the other.
func transfer(rng dice) []Step {
	from, to := step(rng, bankM), step(rng, bankP)
	to.N = -from.N
	return []Step{from, to}
}

func unmetTransfer(rng dice) []Step {
	return append(transfer(rng), Step{Target: anyTarget(rng), Account: nobody, N: amount(rng), Refuse: true})
}

// transferWith also leaves a row at home, without a compensation.
func transferWith(rng dice) []Step {
	return append([]Step{{Target: home, N: amount(rng)}}, transfer(rng)...)
}

func unmetTransferWith(rng dice) []Step {
	return append([]Step{{Target: home, N: amount(rng)}}, unmetTransfer(rng)...)
}

// group writes a compensable staged group, with that deadline unless it is 0.
func group(after time.Duration) func(context.Context, *app, *sending) error {
	return func(ctx context.Context, a *app, s *sending) error {
		opts := []bedsql.TxOption{bedsql.Staged()}
		if after > 0 {
			opts = append(opts, bedsql.CompensateAfter(after))
		}
		sctx, soft, err := bedsql.Begin(ctx, opts...)
		if err != nil {
			return failure{err}
		}
		defer soft.Discard()
		for i, step := range s.Steps {
			if _, err = s.update(sctx, a.pools[step.Target], i); err == nil {
				err = s.undo(soft.Compensation(sctx), a, i)
			}
			if err != nil {
				return failure{err}
			}
		}
		end := soft.End(ctx)
		a.turn(ctx, s, soft.ID())
		return end
	}
}

// undo records the compensation of a step.
func (s *sending) undo(ctx context.Context, a *app, i int) error {
	step := s.Steps[i]
	_, err := a.pools[step.Target].ExecContext(ctx, text(step.Target, updateText), -step.N, undoName(s.Request, i), step.Account)
	return err
}

// turn has an operator compensate a group, if its kind allows that. A group already delivered stays
// so.
func (a *app) turn(ctx context.Context, s *sending, group string) {
	if s.Late {
		_, _ = a.log.Compensate(ctx, group, 0, "an operator wants it")
	}
}

// group checks a compensable group: it is applied or compensated as a whole.
func (j *judgement) group(r *request) {
	done, undone, any := true, true, false
	for i, step := range r.Steps {
		n, back := r.count(j, i), len(j.applied[step.Target][undoName(r.Request, i)])
		if n > 1 || back > 1 {
			j.find("doubled", r.Request, "%s step %d %+v is applied %d times and undone %d times; told %s", r.Kind, i, step, n, back, r.told())
		}
		done, any = done && n == 1 && back == 0, any || n > 0
		undone = undone && (n == back || step.Target == home)
	}
	state := fmt.Sprintf("%s; told %s", r.Kind, r.told())
	if !done && !undone {
		j.find("torn", r.Request, "%s", state)
	}
	for _, s := range r.sends {
		if s.answer == nil {
			continue
		}
		switch o := s.answer.Outcomes[len(r.Steps)-1]; {
		case !done && (o == Delivered || o == Pending && !r.Late):
			j.find("lost", r.Request, "%s", state)
		case o == Undone && (!undone || !r.Late):
			j.find("false undo", r.Request, "%s", state)
		case any && (o == Failed || o == NotLogged || o == Refused):
			j.find("false no", r.Request, "%s", state)
		}
	}
}

func TestTheJudgeKnowsWhatAGroupMayBe(t *testing.T) {
	t.Parallel()
	const there, back = "req-1/%d", "req-1/%d/undo"
	for name, c := range map[string]struct {
		told    Outcome
		late    bool
		applied [2][]string // in each target
		want    string
	}{
		"delivered, and done":            {Delivered, true, [2][]string{{there}, {there}}, ""},
		"delivered, and undone":          {Delivered, true, [2][]string{{there, back}, {there, back}}, "lost"},
		"undone, and undone":             {Undone, true, [2][]string{{there, back}, {}}, ""},
		"undone, and done":               {Undone, true, [2][]string{{there}, {there}}, "false undo"},
		"undone for no reason":           {Undone, false, [2][]string{{there, back}, {}}, "false undo"},
		"pending, and half done":         {Pending, true, [2][]string{{there}, {}}, "torn"},
		"pending, and half compensated":  {Pending, true, [2][]string{{there, back}, {there}}, "torn"},
		"undone without being applied":   {Pending, true, [2][]string{{back}, {}}, "torn"},
		"undone twice":                   {Pending, true, [2][]string{{there, back, back}, {}}, "doubled"},
		"pending, and undone":            {Pending, true, [2][]string{{}, {}}, ""},
		"pending, and undone for nought": {Pending, false, [2][]string{{}, {}}, "lost"},
		"not logged, and done":           {NotLogged, true, [2][]string{{there}, {there}}, "false no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := History{Lines: lines("group", false, []Step{{Target: bankM, N: 5}, {Target: bankP, N: -5}}, []Outcome{c.told, c.told}), Targets: map[string]Target{}}
			h.Lines[0].Turns, h.Lines[0].Late = true, c.late
			for i, target := range []string{bankM, bankP} {
				var effects []Effect
				for _, a := range c.applied[i] {
					n := h.Lines[0].Steps[i].N
					if a == back {
						n = -n
					}
					effects = append(effects, Effect{Name: fmt.Sprintf(a, i), N: n})
				}
				h.Targets[target] = Target{Effects: effects}
			}
			wantFound(t, &h, c.want)
		})
	}
}
