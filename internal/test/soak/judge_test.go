package soak

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// tryJudge changes the content of the targets, one row at a time, and demands that the judge finds
// each change. A judge without findings must be able to make some.
func (w *world) tryJudge(long bool) {
	w.t.Helper()
	none := func(what string) {
		if w.t.Helper(); long {
			w.t.Errorf("%s: there is nothing to try the judge with", what)
			return
		}
		w.t.Logf("%s: a run as short as this one left nothing to try the judge with", what)
	}
	h := w.history()
	sent, delivered := map[string]Line{}, map[string]bool{}
	for _, l := range h.Lines {
		switch l.Event {
		case EventSend:
			sent[l.Request] = l
		case EventAnswer:
			delivered[l.Request] = delivered[l.Request] || !slices.ContainsFunc(l.Outcomes, func(o Outcome) bool { return o != Delivered })
		}
	}
	first := func(fits func(Line) bool) Line {
		for _, id := range slices.Sorted(maps.Keys(delivered)) {
			if delivered[id] && fits(sent[id]) {
				return sent[id]
			}
		}
		return Line{}
	}
	const remove, double = "DELETE FROM effect WHERE request = '%s'", "INSERT INTO effect (request, account, n) SELECT request, account, n FROM effect WHERE request = '%s'"
	for _, c := range []struct {
		name, change, balance, want string
		fits                        func(Line) bool
	}{
		{"a row is removed", remove, "-", "lost", func(l Line) bool { return l.Kind == "update" || l.Kind == "prepared" }},
		{"a row is doubled", double, "+", "doubled", func(l Line) bool { return l.Kind == "prepared" || l.Kind == "update" }},
		{"an effect whose receipt stays is removed", remove, "-", "lost", func(l Line) bool { return l.Kind == "keyed update" || l.Kind == "keyed prepared" }},
		{"half of a group is removed", remove, "-", "torn", func(l Line) bool { return l.Kind == "staged" }},
		{"half of a compensable group is removed", remove, "-", "torn", func(l Line) bool { return l.Kind == "group" }},
		{"the rows of WithTx's transaction are removed", remove, "", "torn", func(l Line) bool { return l.Kind == "with" }},
		{"only a row is removed", remove, "", "balance", func(l Line) bool { return l.Kind == "update" || l.Kind == "prepared" }},
	} {
		l := first(c.fits)
		if l.Request == "" {
			none(c.name)
			continue
		}
		d, step, name := w.targets[l.Steps[0].Target], l.Steps[0], EffectName(l.Request, 0)
		if d == nil {
			d = w.log
		}
		w.exec(d, fmt.Sprintf(c.change, name))
		if c.balance != "" { // behind the trigger's back
			w.balance(d, c.balance, step)
		}
		if found := w.history().Judge(); !slices.ContainsFunc(found, func(f Finding) bool {
			return f.What == c.want && (f.Request == l.Request || c.want == "balance")
		}) {
			w.t.Errorf("%s: the judge found %v, want %q of %s", c.name, found, c.want, l.Request)
		}
		w.exec(d, fmt.Sprintf("DELETE FROM effect WHERE request = '%s'", name))
		w.exec(d, fmt.Sprintf("INSERT INTO effect (request, account, n) VALUES ('%s', %d, %d)", name, step.Account, step.N))
		switch c.balance {
		case "-":
			w.balance(d, "+", step)
		case "+":
			w.balance(d, "-", step)
		}
	}
	w.tryAnswers(none)
	if found := w.history().Judge(); len(found) > 0 {
		w.t.Errorf("all is as it was, and the judge found %v", found)
	}
}

// tryAnswers changes the answers in journals and the values of registers.
func (w *world) tryAnswers(none func(what string)) {
	w.t.Helper()
	h := w.history()
	values := map[string]int{}
	for _, l := range h.Lines {
		if l.Event == EventSend && (l.Kind == "register returning" || l.Kind == "register read") {
			values[l.Send] = 0
		}
	}
	at := slices.IndexFunc(h.Lines, func(l Line) bool {
		_, ok := values[l.Send]
		return ok && l.Event == EventAnswer && l.Outcomes[0] == Delivered && l.Values[0] > 0
	})
	if at < 0 {
		none("a false answer")
		return
	}
	find := func(what string) {
		// A register with too many possible orders to exclude in time fails a run too.
		if found := h.Judge(); !slices.ContainsFunc(found, func(f Finding) bool { return f.What == "register" || f.What == "undecided" }) {
			w.t.Errorf("%s: the judge found %v", what, found)
		}
	}
	h.Lines[at].Values[0]++
	find("a false answer")
	h.Lines[at].Values[0]--
	for id, holds := range h.Targets[bankM].Registers {
		if holds != 0 {
			h.Targets[bankM].Registers[id]++
			find("a register that was changed")
			return
		}
	}
	none("a register that was changed")
}

// balance changes an account's balance, and deletes the effect left by the trigger.
func (w *world) balance(d *database, sign string, step Step) {
	w.exec(d, fmt.Sprintf("UPDATE account SET balance = balance %s (%d), request = 'judge' WHERE id = %d", sign, step.N, step.Account))
	w.exec(d, "DELETE FROM effect WHERE request = 'judge'")
}

func lines(kind string, atomic bool, steps []Step, answers ...[]Outcome) (all []Line) {
	for i, outcomes := range answers {
		send := fmt.Sprint("s", i)
		all = append(all, Line{Event: EventSend, Send: send, Request: "req-1", Kind: kind, Atomic: atomic, Reads: kind == "reads", Steps: steps})
		if outcomes != nil {
			all = append(all, Line{Event: EventAnswer, Send: send, Request: "req-1", Outcomes: outcomes, Replayed: i > 0})
		}
	}
	return all
}

func TestTheJudgeKnowsWhatEachAnswerPromises(t *testing.T) {
	t.Parallel()
	single := []Step{{Target: bankM, N: 5}}
	pair := []Step{{Target: bankM, N: 5}, {Target: bankP, N: 6}}
	parked := func(text string) []Entry { return []Entry{{ID: "1", Parked: true, Text: text}} }
	for name, c := range map[string]struct {
		lines   []Line
		applied []string // targets and names of effects
		log     []Entry
		want    string // what it finds; empty: nothing
	}{
		"delivered and applied":                 {lines("w", true, single, []Outcome{Delivered}), []string{bankM + " req-1/0"}, nil, ""},
		"delivered and not applied":             {lines("w", true, single, []Outcome{Delivered}), nil, nil, "lost"},
		"delivered and applied twice":           {lines("w", true, single, []Outcome{Delivered}), []string{bankM + " req-1/0", bankM + " req-1/0"}, nil, "doubled"},
		"pending and not applied":               {lines("w", true, single, []Outcome{Pending}), nil, nil, "lost"},
		"refused and applied":                   {lines("w", true, single, []Outcome{Failed}), []string{bankM + " req-1/0"}, nil, "false no"},
		"not logged and applied":                {lines("w", true, single, []Outcome{NotLogged}), []string{bankM + " req-1/0"}, nil, "false no"},
		"refused without a cause":               {lines("w", true, single, []Outcome{Refused}), nil, nil, "refused"},
		"in doubt and not applied":              {lines("w", true, single, []Outcome{Doubt}), nil, nil, ""},
		"unanswered and not applied":            {lines("w", true, single, nil), nil, nil, ""},
		"unanswered and applied":                {lines("w", true, single, nil), []string{bankM + " req-1/0"}, nil, ""},
		"unanswered and applied twice":          {lines("w", true, single, nil), []string{bankM + " req-1/0", bankM + " req-1/0"}, nil, "doubled"},
		"half of an unanswered group":           {lines("w", true, pair, nil), []string{bankM + " req-1/0"}, nil, "torn"},
		"half of what is no group":              {lines("w", false, pair, nil), []string{bankM + " req-1/0"}, nil, ""},
		"applied where it was not sent":         {lines("w", true, single, nil), []string{bankP + " req-1/0"}, nil, "invented"},
		"failed and then delivered":             {lines("w", true, single, []Outcome{Failed}, []Outcome{Delivered}), []string{bankM + " req-1/0"}, nil, ""},
		"applied and parked":                    {lines("w", true, single, []Outcome{Pending}), []string{bankM + " req-1/0"}, parked(`"req-1/0"`), "parked"},
		"parked without a cause":                {lines("w", true, single, nil), nil, parked(`"req-1/0"`), "parked"},
		"a reader is pending and not parked":    {lines("reads", true, single, []Outcome{Pending}), nil, nil, "lost"},
		"a reader is pending and parked":        {lines("reads", true, single, []Outcome{Pending}), nil, parked(`"req-1/0"`), ""},
		"a record that nobody sent is parked":   {nil, nil, parked(`"req-9/0"`), "left"},
		"a record is neither parked nor done":   {lines("w", true, single, nil), nil, []Entry{{ID: "1", Text: `"req-1/0"`}}, "left"},
		"forbidden, pending, parked":            {lines("w", true, []Step{{Target: bankM, Refuse: true}}, []Outcome{Pending}), nil, parked(`"req-1/0"`), ""},
		"forbidden and told to be delivered":    {lines("w", true, []Step{{Target: bankM, Refuse: true}}, []Outcome{Delivered}), nil, nil, "delivered"},
		"forbidden, refused and not there":      {lines("w", true, []Step{{Target: bankM, Refuse: true}}, []Outcome{Refused}), nil, nil, ""},
		"forbidden, and applied all the same":   {lines("w", true, []Step{{Target: bankM, N: 5, Refuse: true}}, nil), []string{bankM + " req-1/0"}, nil, "false no"},
		"delivered, and again as an old answer": {lines("w", true, single, []Outcome{Delivered}, []Outcome{Delivered}), []string{bankM + " req-1/0"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := History{Lines: c.lines, Log: c.log, Targets: map[string]Target{}}
			for _, target := range []string{bankM, bankP} {
				var effects []Effect
				for _, a := range c.applied {
					var at, effect string
					if _, err := fmt.Sscan(a, &at, &effect); err != nil {
						t.Fatal(err)
					}
					if n := int64(5); at == target {
						effects = append(effects, Effect{Name: effect, N: n})
					}
				}
				h.Targets[target] = Target{Effects: effects}
			}
			wantFound(t, &h, c.want)
		})
	}
}

// wantFound demands that the judge finds something; empty means no finding.
func wantFound(t *testing.T, h *History, want string) {
	t.Helper()
	found := h.Judge()
	if want == "" && len(found) > 0 || want != "" && !slices.ContainsFunc(found, func(f Finding) bool { return f.What == want }) {
		t.Errorf("found %v, want %q", found, want)
	}
}

func TestJudgeFindsDifferentAnswersToOneKey(t *testing.T) {
	t.Parallel()
	steps := []Step{{Target: bankM, N: 5}}
	all := lines("w", true, steps, []Outcome{Delivered}, []Outcome{Delivered})
	all[1].Values, all[3].Values = []int64{7}, []int64{8}
	h := History{Lines: all, Targets: map[string]Target{bankM: {Effects: []Effect{{Name: "req-1/0", N: 5}}}}}
	if found := h.Judge(); len(found) != 1 || found[0].What != "answers" {
		t.Errorf("found %v", found)
	}
	all[3].Values, all[3].Replayed = []int64{7}, false
	if found := h.Judge(); len(found) != 1 || found[0].What != "answers" {
		t.Errorf("two sends applied it: found %v", found)
	}
}

func TestAReceiptIsExplainedByItsLogAlone(t *testing.T) {
	t.Parallel()
	h := History{Targets: map[string]Target{bankM: {Receipts: []string{"unit-1-000"}}}}
	if found := h.Judge(); len(found) != 1 || found[0].What != "receipt" {
		t.Errorf("found %v", found)
	}
	h.Lines = lines("reads", true, []Step{{Target: bankM, N: 5}}, []Outcome{Pending})
	h.Log = []Entry{{ID: "unit-1-001", Parked: true, Text: `"req-1/0"`}}
	if found := h.Judge(); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}
