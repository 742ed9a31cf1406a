package soak

import (
	"slices"
	"testing"
)

// TestNoRegisterMayAnswerWhatNoOrderExplains tries the judge of registers by
// itself: each history is either explained by an order of its operations or is not.
func TestNoRegisterMayAnswerWhatNoOrderExplains(t *testing.T) {
	t.Parallel()
	const open = 0 // never answered
	type op struct {
		op       string
		n        int64
		gave     int64 // below 0: not known
		from, to int64
		applied  int // rows of effect
	}
	for name, c := range map[string]struct {
		ops   []op
		holds int64
		want  string
	}{
		"one after the other":               {[]op{{OpAddRead, 3, 3, 1, 2, 1}, {OpSet, 9, -1, 3, 4, 1}, {OpRead, 0, 9, 5, 6, 0}}, 9, ""},
		"at the same time, in either order": {[]op{{OpAddRead, 3, 7, 1, 5, 1}, {OpAddRead, 4, 4, 2, 4, 1}}, 7, ""},
		"a false answer":                    {[]op{{OpAddRead, 3, 3, 1, 2, 1}, {OpAddRead, 4, 8, 3, 4, 1}}, 7, "register"},
		"a stale read":                      {[]op{{OpAdd, 3, -1, 1, 2, 1}, {OpRead, 0, 0, 3, 4, 0}}, 3, "register"},
		"a read of what comes later":        {[]op{{OpRead, 0, 3, 1, 2, 0}, {OpAdd, 3, -1, 3, 4, 1}}, 3, "register"},
		"a read of what was undone":         {[]op{{OpAdd, 3, -1, 1, open, 0}, {OpRead, 0, 3, 2, 3, 0}}, 0, "register"},
		"pending, and applied late":         {[]op{{OpAdd, 3, -1, 1, open, 1}, {OpRead, 0, 0, 2, 3, 0}, {OpRead, 0, 3, 4, 5, 0}}, 3, ""},
		"pending, seen and gone again":      {[]op{{OpAdd, 3, -1, 1, open, 1}, {OpRead, 0, 3, 2, 3, 0}, {OpRead, 0, 0, 4, 5, 0}}, 3, "register"},
		"an add that is applied twice":      {[]op{{OpAdd, 3, -1, 1, 2, 2}}, 6, "register"},
		"an add that is lost":               {[]op{{OpAdd, 3, -1, 1, 2, 1}, {OpAdd, 4, -1, 3, 4, 1}}, 4, "register"},
		"an old write over a new one":       {[]op{{OpSet, 3, -1, 1, 2, 1}, {OpSet, 4, -1, 3, 4, 1}}, 3, "register"},
		"an old pending one over a new":     {[]op{{OpSet, 3, -1, 1, open, 1}, {OpSet, 4, -1, 3, 4, 1}}, 3, ""},
		"changed behind everybody's back":   {nil, 5, "register"},
		"two halves of one answer swapped":  {[]op{{OpAddRead, 3, 4, 1, 2, 1}, {OpAddRead, 4, 3, 1, 2, 1}}, 7, "register"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const id = FirstRegister
			h := History{Targets: map[string]Target{}}
			target := Target{Registers: map[int64]int64{id: c.holds}}
			for i, o := range c.ops {
				request := "req-" + string(rune('a'+i))
				step := Step{Op: o.op, Target: bankM, Account: id, N: o.n}
				h.Lines = append(h.Lines, Line{Event: EventSend, Send: request, Request: request, Atomic: true, Steps: []Step{step}, At: o.from})
				if o.to != open {
					h.Lines = append(h.Lines, Line{Event: EventAnswer, Send: request, Request: request, Outcomes: []Outcome{Delivered}, Values: []int64{o.gave}, At: o.to})
				}
				for range o.applied {
					target.Effects = append(target.Effects, Effect{ID: int64(len(target.Effects)), Name: EffectName(request, 0), Account: id, N: o.n})
				}
			}
			h.Targets[bankM] = target
			found := slices.DeleteFunc(h.Judge(), func(f Finding) bool { return f.What == "doubled" })
			if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || found[0].What != c.want) {
				t.Errorf("found %v, want %q", found, c.want)
			}
		})
	}
}
