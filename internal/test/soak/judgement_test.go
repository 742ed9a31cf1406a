package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Effect is the row of an applied step in its target.
type Effect struct {
	ID      int64
	Name    string
	Account int64
	N       int64
}

// Target is the final content of a target.
type Target struct {
	Effects  []Effect
	Balances map[int64]int64 // by account; all were 0
	// Registers are the values of registers by id; all began with 0.
	Registers map[int64]int64
	// Receipts are the units of receipts without a key. After their retention, only logged units
	// may have one.
	Receipts []string
}

// Entry is a record left in the log.
type Entry struct {
	ID     string
	Parked bool
	// Text holds its statement and parameters, with the name of its effect.
	Text      string
	LastError string
}

// History is the evidence for the judge.
type History struct {
	Lines   []Line
	Targets map[string]Target
	Log     []Entry
}

// Finding is a broken promise.
type Finding struct {
	What    string // "lost", "doubled", "torn" …
	Request string
	Detail  string
}

func (f Finding) String() string { return f.What + ": " + f.Request + ": " + f.Detail }

// request is a request in the journals.
type request struct {
	*Line // of its first send
	sends []*send
}

type send struct {
	*Line
	accepted map[int]bool // steps that Exec took
	answer   *Line
}

// Judged is how much was looked at.
type Judged struct{ Registers, Operations int }

// Judge compares the answers with the data.
func (h *History) Judge() []Finding {
	found, _ := h.judge()
	return found
}

func (h *History) judge() ([]Finding, Judged) {
	j := &judgement{requests: map[string]*request{}, applied: map[string]map[string][]Effect{}}
	j.read(h.Lines)
	for target, t := range h.Targets {
		j.tables(target, t)
	}
	for _, id := range slices.Sorted(maps.Keys(j.requests)) {
		j.request(j.requests[id])
	}
	j.log(h.Log)
	j.receipts(h)
	j.registers(h.Targets)
	j.inOrder(h.Targets)
	return j.found, j.judged
}

type judgement struct {
	judged   Judged
	requests map[string]*request
	applied  map[string]map[string][]Effect // by target and name
	found    []Finding
}

func (j *judgement) find(what, id, format string, args ...any) {
	j.found = append(j.found, Finding{what, id, fmt.Sprintf(format, args...)})
}

func (j *judgement) read(lines []Line) {
	sends := map[string]*send{}
	for i := range lines {
		l := &lines[i]
		if l.Event == EventSend {
			r := j.requests[l.Request]
			if r == nil {
				r = &request{Line: l}
				j.requests[l.Request] = r
			}
			sends[l.Send] = &send{Line: l}
			r.sends = append(r.sends, sends[l.Send])
		}
	}
	for i := range lines {
		l := &lines[i]
		switch s := sends[l.Send]; {
		case s == nil:
			j.find("journal", l.Request, "%s without a send", l.Event)
		case l.Event == EventStep:
			if s.accepted == nil {
				s.accepted = map[int]bool{}
			}
			s.accepted[l.Step] = true
		case l.Event == EventAnswer:
			s.answer = l
		}
	}
}

// tables makes the checks that need no request.
func (j *judgement) tables(name string, t Target) {
	sums, applied := map[int64]int64{}, map[string][]Effect{}
	for _, e := range t.Effects {
		sums[e.Account] += e.N
		applied[e.Name] = append(applied[e.Name], e)
		id, step, _ := strings.Cut(e.Name, "/")
		r := j.requests[id]
		known := r != nil
		if known {
			var n int
			_, err := fmt.Sscanf(step, "%d", &n)
			known = err == nil && n < len(r.Steps) && r.Steps[n].Target == name
			want := e.N
			if strings.HasSuffix(step, "/undo") {
				want = -want
			}
			if known && (r.Steps[n].Account != e.Account || r.Steps[n].N != want) {
				j.find("altered", id, "step %d is %+v, applied as %+v", n, r.Steps[n], e)
			}
		}
		if !known {
			j.find("invented", e.Name, "in %s, and nobody sent it", name)
		}
	}
	for account, balance := range t.Balances {
		if sums[account] != balance {
			j.find("balance", name, "account %d holds %d, its effects add up to %d", account, balance, sums[account])
		}
	}
	j.applied[name] = applied
}

func (r *request) count(j *judgement, step int) int {
	return len(j.applied[r.Steps[step].Target][EffectName(r.Request, step)])
}

func (j *judgement) request(r *request) {
	if r.Turns {
		j.group(r)
		return
	}
	counts := make([]int, len(r.Steps))
	for i, step := range r.Steps {
		if step.Op == OpRead {
			continue
		}
		counts[i] = r.count(j, i)
		must, may := r.allowed(i)
		switch {
		case counts[i] > 1:
			j.find("doubled", r.Request, "%s step %d %+v is applied %d times; told %s", r.Kind, i, step, counts[i], r.told())
		case counts[i] == 1 && !may:
			j.find("false no", r.Request, "%s step %d %+v is applied; told %s", r.Kind, i, step, r.told())
		case counts[i] == 0 && must:
			j.find("lost", r.Request, "%s step %d %+v is not applied; told %s", r.Kind, i, step, r.told())
		}
	}
	if r.Atomic && slices.Min(counts) != slices.Max(counts) {
		j.find("torn", r.Request, "%s steps are applied %v times; told %s", r.Kind, counts, r.told())
	}
	j.answers(r)
}

// allowed is whether a step must be, and whether it may be applied.
func (r *request) allowed(step int) (must, may bool) {
	if r.Steps[step].Refuse {
		return false, false
	}
	for _, s := range r.sends {
		switch {
		case s.answer == nil && s.accepted[step]:
			must = true
		case s.answer == nil:
			may = true
		default:
			switch s.answer.Outcomes[step] {
			case Delivered:
				must = true
			case Pending:
				must, may = must || !r.Reads, true
			case Doubt, Unknown:
				may = true
			}
		}
	}
	return must, must || may
}

// answers checks the answers to all sends of a request, and refusals without a reason.
func (j *judgement) answers(r *request) {
	first, fresh := make([]int64, len(r.Steps)), 0
	for i := range first {
		first[i] = -1
	}
	for _, s := range r.sends {
		if s.answer == nil {
			continue
		}
		delivered := true
		for i, o := range s.answer.Outcomes {
			delivered = delivered && o == Delivered
			if o == Refused && !r.Steps[i].Refuse {
				j.find("refused", r.Request, "%s step %d, which nothing forbids: %s", r.Kind, i, s.answer.Detail)
			}
			if o == Delivered && r.Steps[i].Refuse {
				j.find("delivered", r.Request, "%s step %d, which is forbidden", r.Kind, i)
			}
			if o != Delivered || i >= len(s.answer.Values) || s.answer.Values[i] < 0 {
				continue
			}
			switch value := s.answer.Values[i]; {
			case first[i] < 0:
				first[i] = value
			case first[i] != value:
				j.find("answers", r.Request, "%s step %d was answered with %d and with %d", r.Kind, i, first[i], value)
			}
		}
		if delivered && !s.answer.Replayed {
			fresh++
		}
	}
	if fresh > 1 {
		j.find("answers", r.Request, "%s: %d sends got the answer that they had applied it", r.Kind, fresh)
	}
}

func (r *request) told() string {
	var all []string
	for _, s := range r.sends {
		switch {
		case s.answer == nil && len(s.accepted) > 0:
			all = append(all, fmt.Sprintf("%s: nothing but of steps %v", s.Send, slices.Sorted(maps.Keys(s.accepted))))
		case s.answer == nil:
			all = append(all, s.Send+": nothing")
		default:
			all = append(all, fmt.Sprintf("%s: %v %s", s.Send, s.answer.Outcomes, s.answer.Detail))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// log explains the entries left in it. Each is parked, because the target forbids it, or because
// the decision was against it.
func (j *judgement) log(entries []Entry) {
	explained := map[string]bool{}
	for _, e := range entries {
		r, step := j.named(e.Text)
		switch {
		case r == nil:
			j.find("left", e.ID, "belongs to nobody: %s; last error: %s", e.Text, e.LastError)
		case !e.Parked:
			j.find("left", r.Request, "%s is still in the log: %s", r.Kind, e.LastError)
		case r.count(j, step) > 0:
			j.find("parked", r.Request, "%s step %d is applied and parked; told %s; last error: %s", r.Kind, step, r.told(), e.LastError)
		case !r.Steps[step].Refuse && !r.Reads:
			j.find("parked", r.Request, "%s step %d: %s; told %s", r.Kind, step, e.LastError, r.told())
		default:
			explained[r.Request] = true
		}
	}
	for id, r := range j.requests {
		for _, s := range r.sends {
			if r.Reads && s.answer != nil && slices.Contains(s.answer.Outcomes, Pending) && r.count(j, 0) == 0 && !explained[id] {
				j.find("lost", id, "%s is neither applied nor parked; told %s", r.Kind, r.told())
			}
		}
	}
}

// receipts belong to logged units: the last three digits of a record's id count the statements of
// its unit.
func (j *judgement) receipts(h *History) {
	unit := func(id string) string { return id[:max(0, len(id)-3)] }
	logged := map[string]bool{}
	for _, e := range h.Log {
		logged[unit(e.ID)] = true
	}
	for name, t := range h.Targets {
		for _, id := range t.Receipts {
			if !logged[unit(id)] {
				j.find("receipt", name, "that of unit %s is left, which is not in the log", id)
			}
		}
	}
}

// named finds the request and the step of a record.
func (j *judgement) named(text string) (*request, int) {
	const mark = "req-"
	for rest := text; ; {
		at := strings.Index(rest, mark)
		if at < 0 {
			return nil, 0
		}
		rest = rest[at:]
		id, step, _ := strings.Cut(rest, "/")
		var n int
		if r := j.requests[id]; r != nil {
			if _, err := fmt.Sscanf(step, "%d", &n); err == nil && n < len(r.Steps) {
				return r, n
			}
		}
		rest = rest[len(mark):]
	}
}
