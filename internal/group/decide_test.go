package group

import (
	"math/bits"
	"testing"
)

// set is a set of the kinds of parts that a group has.
type set uint

func of(parts ...Part) (s set) {
	for _, p := range parts {
		s |= 1 << p
	}
	return s
}

func (s set) has(any set) bool { return s&any != 0 }

const everyKind = Unasked + 1

// The rows are in order: the first one that matches counts. Every row counts for some group.
func TestWhatIsDecidedAboutAGroup(t *testing.T) {
	t.Parallel()
	rows := []struct {
		when  string
		match func(k Known, s set) bool
		want  Decision
	}{
		{"others compensate it", func(k Known, _ set) bool { return k.Compensating }, Compensate},
		{"a receipt is void", func(_ Known, s set) bool { return s.has(of(Voided)) }, Compensate},
		{"a part is refused or discarded", func(_ Known, s set) bool { return s.has(of(Refused)) }, Compensate},
		{"the log forgot it, and a receipt is there", func(k Known, s set) bool { return k.Gone && s.has(of(Applied)) }, Complete},
		{"the log forgot it, and no receipt tells", func(k Known, _ set) bool { return k.Gone }, AskAgain},
		{"its time is over, and a part has no receipt", func(k Known, s set) bool { return k.Over && s.has(of(Missing)) }, Compensate},
		{"its time is over, and a receipt is unknown", func(k Known, s set) bool { return k.Over && s.has(of(Waiting, Unasked)) }, AskAgain},
		{"other parts are open", func(k Known, _ set) bool { return k.Open }, LeaveOpen},
		{"all parts are delivered", func(_ Known, s set) bool { return !s.has(^of(Delivered)) }, Complete},
		{"an entry is in the log", func(Known, set) bool { return true }, LeaveOpen},
	}
	met := make([]int, len(rows))
	for s := range set(1 << everyKind) {
		for flags := range 16 {
			k := Known{Over: flags&1 > 0, Open: flags&2 > 0, Compensating: flags&4 > 0, Gone: flags&8 > 0}
			for p := range everyKind {
				if s.has(of(p)) {
					k.Parts = append(k.Parts, p)
				}
			}
			for i, r := range rows {
				if !r.match(k, s) {
					continue
				}
				met[i]++
				if got := k.Decide(); got != r.want {
					t.Errorf("%s: %+v: %d, want %d", r.when, k, got, r.want)
				}
				break
			}
		}
	}
	for i, r := range rows {
		if met[i] == 0 {
			t.Errorf("no group is one of which %s", r.when)
		}
	}
}

// More knowledge may end a doubt, but never turns a compensation into a completion or back.
func TestDecisionsAreFinal(t *testing.T) {
	t.Parallel()
	ends := map[Part][]Part{ // what a lookup makes of a part
		Waiting: {Applied, Voided, Missing, Unasked},
		Unasked: {Applied, Voided, Missing},
	}
	for s := range set(1 << everyKind) {
		for _, over := range []bool{false, true} {
			if bits.OnesCount(uint(s)) == 0 {
				continue
			}
			k := Known{Over: over}
			for p := range everyKind {
				if s.has(of(p)) {
					k.Parts = append(k.Parts, p)
				}
			}
			before := k.Decide()
			for i, p := range k.Parts {
				for _, to := range ends[p] {
					k.Parts[i] = to
					if after := k.Decide(); before == Complete || before == Compensate && after != Compensate {
						t.Errorf("%+v: %d, and then %d", k, before, after)
					}
				}
				k.Parts[i] = p
			}
		}
	}
}
