package soak

import (
	"cmp"
	"slices"
	"testing"
)

func registerInOrder(d dice, target string) Step {
	pace := int64(d.pace)
	return Step{Op: OpInOrder, Target: target, Account: FirstInOrder + int64(d.at/registerAge)*pace + d.Int64N(pace), N: 1 + d.Int64N(1<<40)}
}

func inOrder(d dice) []Step { return []Step{registerInOrder(d, anyTarget(d))} }

func bothInOrder(d dice) []Step {
	return []Step{registerInOrder(d, bankM), registerInOrder(d, bankP)}
}

func withInOrder(d dice) []Step {
	return []Step{{Target: home, N: amount(d)}, registerInOrder(d, anyTarget(d))}
}

// inOrder demands for two writes under an order key: if one was accepted before the other was sent,
// it took effect first.
func (j *judgement) inOrder(targets map[string]Target) {
	for name, t := range targets {
		order := slices.SortedFunc(slices.Values(t.Effects), func(a, b Effect) int { return cmp.Compare(b.ID, a.ID) })
		// later is, for each key, the earliest accepted operation among those that took effect
		// later.
		later := map[int64]operation{}
		for _, e := range order {
			o, ok := j.accepted(e)
			if !ok {
				continue
			}
			last, found := later[e.Account]
			if found && last.done < o.at {
				j.find("inversion", o.request, "took effect in %s, register %d, before %s, which was accepted before it was sent", name, e.Account, last.request)
			}
			if !found || o.done < last.done {
				later[e.Account] = o
			}
		}
	}
}

// accepted returns the times of sending and of known acceptance, for the write that left an effect
// under an order key.
func (j *judgement) accepted(e Effect) (o operation, ok bool) {
	r, step := j.named(e.Name)
	if r == nil || r.Steps[step].Op != OpInOrder {
		return o, false
	}
	o = operation{request: e.Name, at: r.sends[0].At, done: never}
	if a := r.sends[0].answer; a != nil && (a.Outcomes[step] == Delivered || a.Outcomes[step] == Pending) {
		o.done = a.At
	}
	return o, true
}

func TestTheJudgeFindsAnInversion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		accepted int64 // when the first write is
		told     Outcome
		first    int64 // the effect's id of the first write
		want     string
	}{
		"one after the other":                {2, Delivered, 1, ""},
		"the wrong way round":                {2, Pending, 9, "inversion"},
		"at the same time":                   {4, Delivered, 9, ""},
		"of which one is not known accepted": {2, Doubt, 9, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := Step{Op: OpInOrder, Target: bankM, Account: FirstInOrder, N: 5}
			h := History{Targets: map[string]Target{bankM: {Effects: []Effect{
				{ID: c.first, Name: "req-a/0", Account: FirstInOrder, N: 5}, {ID: 5, Name: "req-b/0", Account: FirstInOrder, N: 5}}}}}
			for i, request := range []string{"req-a", "req-b"} {
				told, at := c.told, c.accepted
				if i > 0 {
					told, at = Pending, 9
				}
				h.Lines = append(h.Lines, Line{Event: EventSend, Send: request, Request: request, Atomic: true, Steps: []Step{step}, At: int64(1 + 2*i)},
					Line{Event: EventAnswer, Send: request, Request: request, Outcomes: []Outcome{told}, At: at})
			}
			wantFound(t, &h, c.want)
		})
	}
}
