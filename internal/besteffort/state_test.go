package besteffort

import (
	"errors"
	"slices"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/txlog"
)

func init() { Strict = true }

// The steps as docs/architecture.md draws them.
var drawn = map[string]struct {
	step
	ways map[state]bool
}{
	"write":     {write, ways(fresh)},
	"accept":    {accept, ways(fresh, logging)},
	"goWithout": {goWithout, ways(logging)},
	"hold":      {hold, ways(logged)},
	"resume":    {resume, ways(held)},
	"leave":     {leave, ways(logging, logged, held)},
	"finish":    {finish, ways(fresh, logging, logged, held)},
}

func ways(from ...state) map[state]bool {
	m := map[state]bool{}
	for _, s := range from {
		m[s] = true
	}
	return m
}

func TestIllegalStepsPanic(t *testing.T) {
	t.Parallel()
	for name, s := range drawn {
		for from := fresh; from <= done; from++ {
			c := course{state: from}
			panicked := func() (p any) {
				defer func() { p = recover() }()
				c.take(s.step)
				return nil
			}()
			switch legal := s.ways[from]; {
			case legal && (panicked != nil || c.state != s.to):
				t.Errorf("%s from state %d leads to %d, and panics with %v", name, from, c.state, panicked)
			case !legal && (panicked == nil || c.state != from):
				t.Errorf("%s from state %d leads to %d without a panic", name, from, c.state)
			}
		}
	}
}

func TestEveryStateIsReachedAndHasAnEnd(t *testing.T) {
	t.Parallel()
	reached := []state{fresh}
	for i := 0; i < len(reached); i++ {
		ends := true
		for _, s := range drawn {
			if !s.ways[reached[i]] {
				continue
			}
			if ends = false; !slices.Contains(reached, s.to) {
				reached = append(reached, s.to)
			}
		}
		if final := reached[i] == unlogged || reached[i] == handedOver || reached[i] == done; ends != final {
			t.Errorf("state %d is an end: %v, want %v", reached[i], ends, final)
		}
	}
	if len(reached) != int(done)+1 {
		t.Errorf("reached are the states %v of %d", reached, done+1)
	}
}

func TestOnlyTheReceiptEndsADoubt(t *testing.T) {
	t.Parallel()
	var c course
	for _, s := range []struct {
		do   func()
		want doubt
	}{
		{func() { c.doubtIf(false) }, noDoubt},
		{func() { c.doubtIf(true) }, inDoubt},
		{func() { c.doubtIf(false) }, inDoubt},
		{func() { c.take(write) }, inDoubt},
		{func() { c.take(accept) }, inDoubt},
		{func() { c.decided(true) }, voided},
		{func() { c.doubtIf(true) }, inDoubt},
		{func() { c.decided(false) }, noDoubt},
	} {
		if s.do(); c.doubt != s.want {
			t.Errorf("the doubt is %d, want %d", c.doubt, s.want)
		}
	}
}

// Answer counts every other state.
func TestUnloggedWriteStaysUnlogged(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]attempt.Outcome{"applied": {}, "refused": refusal, "maybe": maybe} {
		d := loggingDeliverer(&journaled{Memory: txlog.NewMemory(), fails: errNoLog}, func(c *Config) { c.RunUnlogged = true })
		w := aWrite(LogBefore, takes(0, first))
		if err := d.Deliver(t.Context(), w); !errors.Is(err, first.Err) || w.state != unlogged {
			t.Errorf("%s: the caller gets %v, in state %d", name, err, w.state)
		}
		d.Close(t.Context())
	}
}
