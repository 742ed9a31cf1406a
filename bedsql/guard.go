package bedsql

import (
	"database/sql/driver"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// GuardPolicy says what becomes of a write whose text shows that applying it
// again is not the same as applying it once:
//
//   - it sets a column from what it changes (SET n = n + 1), without comparing
//     the old value in its WHERE;
//   - it inserts a row whose id the database makes (DEFAULT VALUES, NULL or
//     DEFAULT for the id, RETURNING id where none is given) and has no clause for a
//     row that is there already;
//   - it updates or deletes with a LIMIT;
//   - it calls a function that gives something else each time (RAND, UUID,
//     NEXTVAL), or writes the time at which it runs (NOW).
//
// Under ExactlyOnce or an idempotency key none of these changes rows twice. There
// the guard refuses nothing, and warns only of a time that is written, because a
// write that is delivered later writes a later time, once.
//
// Only the text is read: not what triggers and the application's own functions
// do, and no table's keys. Writes that run unlogged, and those of a local
// transaction that will not be delivered again, are not looked at.
type GuardPolicy uint8

const (
	// GuardWarn runs it, with one warning for each statement. Statements that
	// differ only in their values, or in the number of rows that they insert, count
	// as one; the warning shows none of the values.
	GuardWarn GuardPolicy = iota
	// GuardRefuse answers ErrNotIdempotent. Nothing is logged or sent. What
	// only the answer shows (a generated id) is warned of as under GuardWarn.
	GuardRefuse
	// GuardOff does not look.
	GuardOff
)

const (
	// guardRecent is how many texts are known, without a lock, to need no further
	// warning.
	guardRecent = 1 << 10
	// guardWarned is after how many statements the guard stops warning.
	guardWarned = 1 << 10
	// guardShown is how many bytes of a statement a warning shows.
	guardShown = 400
)

// guard finds writes that are not the same the second time. It is safe for
// concurrent use.
type guard struct {
	policy   GuardPolicy
	flavor   sqltext.Flavor
	named    func([]driver.NamedValue) bool
	counters *Counters
	log      logrus.FieldLogger

	seed maphash.Seed
	// recent has the hashes of texts that need no further warning.
	recent [guardRecent]atomic.Uint64

	mu sync.Mutex
	// warned has the hashes of statements that were warned of.
	warned map[uint64]struct{}
	// quiet: too many were.
	quiet atomic.Bool
}

func newGuard(cfg *Config, d *delivery.Dialect, log logrus.FieldLogger) *guard {
	return &guard{
		policy: cfg.Guard, flavor: sqltext.Flavor(d.Flavor), named: d.Named, counters: cfg.Counters, log: log,
		seed: maphash.MakeSeed(), warned: make(map[uint64]struct{}),
	}
}

// hazards are those of s. once says that it is applied once.
func (g *guard) hazards(s statement, once bool) sqltext.Hazards {
	if s.class.Once && !once { // under WithGuarantee
		return sqltext.Classify(g.flavor, s.query).Hazards
	}
	return s.class.Hazards
}

// check refuses s or warns of it before it is logged or sent. once says that it
// is applied once. found reports that there was something to warn of, for the
// caller to count.
func (g *guard) check(s statement, args []driver.NamedValue, once bool) (found bool, err error) {
	if g.policy == GuardOff {
		return false, nil
	}
	h := g.hazards(s, once)
	if h == 0 {
		return false, nil
	}
	if g.named != nil && strings.IndexByte(s.query, '@') >= 0 && g.named(args) {
		h = sqltext.ClassifyAs(g.flavor, sqltext.NamedParameters, s.query).Hazards
	}
	if once {
		h &= sqltext.Clock
	} else {
		h &^= sqltext.KeyUnknown
	}
	if h == 0 {
		return false, nil
	}
	if g.policy == GuardRefuse && !once {
		g.counters.Guarded.Add(1)
		reason, advice := explain(h)
		return false, fmt.Errorf("%w: %s; %s", ErrNotIdempotent, reason, advice)
	}
	if g.news(s.query, h) {
		reason, advice := explain(h)
		g.warn(s.query, reason, advice)
	}
	return true, nil
}

// answered warns of an INSERT whose answer shows that the database made its id,
// where the text did not. In SQLite every answer has an id, also for tables with
// a key of another kind, so it shows nothing.
func (g *guard) answered(s statement, args []driver.NamedValue, res driver.Result, once bool) {
	const h = sqltext.KeyUnknown
	if once || res == nil || g.policy == GuardOff || g.flavor != sqltext.MySQL || g.hazards(s, once)&h == 0 {
		return
	}
	id, err := res.LastInsertId()
	if err != nil || id == 0 || given(args, id) {
		return
	}
	if !g.isRecent(g.hash(s.query, h)) && strings.Contains(s.query, strconv.FormatInt(id, 10)) {
		return // it may be given in the text
	}
	g.counters.Guarded.Add(1)
	if g.news(s.query, h) {
		g.warn(s.query, "the database made the id of the row, so that a second delivery inserts a second row, unless another unique key stops it",
			"give the row a key of its own (a UUID made by the application), add a clause for a row that is there already, or use ExactlyOnce")
	}
}

// given reports whether id is one of the parameters: MySQL answers with an id
// that was given as it does with one that it made.
func given(args []driver.NamedValue, id int64) bool {
	for i := range args {
		switch v := args[i].Value.(type) {
		case int64:
			if v == id {
				return true
			}
		case uint64:
			if v == uint64(id) {
				return true
			}
		case string:
			if n, err := strconv.ParseInt(v, 10, 64); err == nil && n == id {
				return true
			}
		case []byte:
			if n, err := strconv.ParseInt(string(v), 10, 64); err == nil && n == id {
				return true
			}
		}
	}
	return false
}

func (g *guard) hash(text string, h sqltext.Hazards) uint64 {
	return maphash.String(g.seed, text)<<8 | uint64(h) // never 0
}

func (g *guard) slot(hash uint64) *atomic.Uint64 { return &g.recent[(hash>>8)%guardRecent] }

func (g *guard) isRecent(hash uint64) bool { return g.slot(hash).Load() == hash }

// news reports whether this is the first time that a statement is to be warned
// of, and notes it.
func (g *guard) news(text string, h sqltext.Hazards) bool {
	hash := g.hash(text, h)
	if g.isRecent(hash) || g.quiet.Load() {
		return false
	}
	statement := g.hash(sqltext.Shape(g.flavor, text), h)
	g.mu.Lock()
	_, known := g.warned[statement]
	full := !known && len(g.warned) >= guardWarned
	if !known && !full {
		g.warned[statement] = struct{}{}
	}
	g.mu.Unlock()
	g.slot(hash).Store(hash)
	if full && !g.quiet.Swap(true) {
		g.log.WithField("statements", guardWarned).Warn("bed: too many statements are not the same when they are delivered again, no more are shown; Counters.Guarded counts them")
	}
	return !known && !full
}

func (g *guard) warn(text, reason, advice string) {
	g.log.WithFields(logrus.Fields{"statement": shown(g.flavor, text), "reason": reason, "advice": advice}).
		Warn("bed: a statement is not the same when it is delivered again")
}

// shown is a statement as log lines may show it: without its values.
func shown(f sqltext.Flavor, text string) string {
	text = sqltext.Mask(f, text)
	if len(text) > guardShown {
		text = strings.ToValidUTF8(text[:guardShown], "") + "…"
	}
	return text
}

// explanations say what each hazard is, and what to do about it.
var explanations = []struct {
	hazard         sqltext.Hazards
	reason, advice string
}{
	{sqltext.SelfReferring,
		"it sets a column from what it changes itself, and a second delivery would change it again",
		"set an absolute value, compare the old one in the WHERE, or use ExactlyOnce"},
	{sqltext.NoKey,
		"the database makes the id of its row, and a second delivery would insert a second row",
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
