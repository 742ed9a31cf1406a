package bedsql

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
)

// GuardPolicy is the policy for a write that is not idempotent by its text:
//
//   - it sets a column from itself (SET n = n + 1), without comparing a column that
//     it sets with a value in its WHERE;
//   - it inserts a row without naming its key (id, uuid, guid or ulid) and has no
//     clause for a row that is there already;
//   - it deletes with a LIMIT, or updates with a LIMIT and no order;
//   - it calls a function with a new result each time (RAND, UUID, NEXTVAL), or
//     writes the present time (NOW).
//
// Under ExactlyOnce or an idempotency key none of these changes rows twice. There the guard
// refuses nothing, and warns only of a written time, because a late delivery writes a later time,
// once.
//
// It is a small heuristic over the text; the doc of Hazards in internal/sqltext lists its gaps.
// The guard ignores unlogged writes, and writes of a local transaction that will not be delivered
// again.
type GuardPolicy uint8

const (
	// GuardWarn runs it, with one warning for each statement. Statements that differ only in their
	// values, or in the number of inserted rows, count as one; the warning shows no values.
	GuardWarn GuardPolicy = iota
	// GuardRefuse returns ErrNotIdempotent. Nothing is logged or sent.
	GuardRefuse
	// GuardOff does not look.
	GuardOff
)

const (
	// guardKnown is how many texts are known to need no further warning, and
	// guardWarned after how many statements the guard stops warning.
	guardKnown, guardWarned = 1 << 12, 1 << 10
	// guardShown is how many bytes of a statement a warning shows.
	guardShown = 400
)

// guard finds writes that are not idempotent. It is safe for concurrent use.
type guard struct {
	policy   GuardPolicy
	flavor   sqltext.Flavor
	counters *Counters
	log      logrus.FieldLogger

	seed maphash.Seed
	mu   sync.Mutex
	// known has the hashes of texts that need no further warning. warned has the hashes of warned
	// statements without their values.
	known, warned map[uint64]struct{}
}

func newGuard(cfg *Config, d *dialect.Dialect, log logrus.FieldLogger) *guard {
	return &guard{
		policy: cfg.Guard, flavor: d.Flavor, counters: cfg.Counters, log: log,
		seed: maphash.MakeSeed(), known: make(map[uint64]struct{}), warned: make(map[uint64]struct{}),
	}
}

// admit is check for a write that will be sent: it also counts the finding.
func (g *guard) admit(s statement, once bool) error {
	found, err := g.check(s, once)
	if found {
		g.counters.Guarded.Add(1)
	}
	return err
}

// check refuses s or warns of it before it is logged or sent. once means that it is applied only
// once. found reports a finding, for the caller to count.
func (g *guard) check(s statement, once bool) (found bool, err error) {
	h := s.class.Hazards
	if once {
		h &= sqltext.Clock
	}
	if g.policy == GuardOff || h == 0 {
		return false, nil
	}
	if g.policy == GuardRefuse && !once {
		g.counters.Guarded.Add(1)
		reason, advice := explain(h)
		return false, fmt.Errorf("%w: %s; %s", ErrNotIdempotent, reason, advice)
	}
	g.warn(s.SQL, h)
	return true, nil
}

func (g *guard) hash(text string, h sqltext.Hazards) uint64 {
	return maphash.String(g.seed, text)<<8 | uint64(h)
}

// warn logs the hazards of each statement once.
func (g *guard) warn(text string, h sqltext.Hazards) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hash := g.hash(text, h)
	if _, known := g.known[hash]; known || len(g.warned) > guardWarned {
		return
	}
	if len(g.known) == guardKnown { // texts with their values in them, of few statements
		clear(g.known)
	}
	g.known[hash] = struct{}{}
	masked := sqltext.Mask(g.flavor, text)
	hash = g.hash(masked, h)
	if _, warned := g.warned[hash]; warned {
		return
	}
	g.warned[hash] = struct{}{}
	if len(g.warned) > guardWarned {
		g.log.WithField("statements", guardWarned).Warn("bed: too many statements are not idempotent, no more are shown; Counters.Guarded counts them")
		return
	}
	reason, advice := explain(h)
	g.log.WithFields(logrus.Fields{"statement": short(masked), "reason": reason, "advice": advice}).Warn("bed: a statement is not idempotent")
}

// shown is a statement as log lines may show it: without its values.
func shown(f sqltext.Flavor, text string) string { return short(sqltext.Mask(f, text)) }

func short(text string) string {
	if len(text) > guardShown {
		text = strings.ToValidUTF8(text[:guardShown], "") + "…"
	}
	return text
}

// explanations describe each hazard, with advice.
var explanations = []struct {
	hazard         sqltext.Hazards
	reason, advice string
}{
	{sqltext.SelfReferring,
		"it sets a column from itself, and a second delivery would change it again",
		"set an absolute value, compare the old one in the WHERE, or use ExactlyOnce"},
	{sqltext.NoKey,
		"it names no key of its row, and where the database makes one a second delivery would insert a second row",
		"give the row a key of its own (a UUID made by the application), add a clause for a row that is there already, or use ExactlyOnce"},
	{sqltext.Limited,
		"with its LIMIT a second delivery would take further rows",
		"name the rows by their keys, or use ExactlyOnce"},
	{sqltext.NonDeterministic,
		"it calls a function that gives something else at each delivery",
		"pass the value as a parameter"},
	{sqltext.Clock,
		"it writes the time of its delivery, which may be much later than the call",
		"pass the time as a parameter"},
}

func explain(h sqltext.Hazards) (reason, advice string) {
	var reasons, advices []string
	for _, e := range explanations {
		if h&e.hazard != 0 {
			reasons = append(reasons, e.reason)
			advices = append(advices, e.advice)
		}
	}
	return strings.Join(reasons, "; "), strings.Join(advices, "; ")
}
