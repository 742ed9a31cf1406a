package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// writes measures the contenders for writes.
type writes struct {
	opts *Options
	site *site
	// targets are the target databases: two of MariaDB, one of PostgreSQL.
	targets map[string][]*place
	// tables and logs are the contenders' own, kept from scene to scene.
	tables map[string]string
	logs   map[string]*place
	// turns are those of each contender by scene, in the order of the rounds.
	turns map[string]map[string][]turn
	watch processes
}

func newWrites(opts *Options, s *site) (*writes, error) {
	w := &writes{opts: opts, site: s, targets: map[string][]*place{}, tables: map[string]string{}, logs: map[string]*place{}, turns: map[string]map[string][]turn{}}
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverMySQL, testdb.DriverPostgres} {
		p, err := s.create(driver)
		if err != nil {
			return nil, err
		}
		w.targets[driver] = append(w.targets[driver], p)
	}
	return w, nil
}

// scenes are the scenes that pass the options.
func (o *Options) scenes() []scene {
	var all []scene
	for _, far := range []bool{false, true} {
		for _, callers := range o.Callers {
			sc := scene{callers: callers, far: far, name: fmt.Sprint(callers)}
			if far {
				sc.name += " " + o.RoundTrip.String()
			}
			if matches(o.Scenes, sc.name) {
				all = append(all, sc)
			}
		}
	}
	return all
}

func matches(pattern, name string) bool { return regexp.MustCompile(pattern).MatchString(name) }

// chosen are the contenders of a scene.
func (w *writes) chosen(sc scene) []contender {
	var ids []string
	for _, c := range contenders() {
		if (w.opts.Figures || sc.callers == onlyFigures) && !figuresUse(w.opts, sc.name, c.id) {
			continue
		}
		if matches(w.opts.Contenders, c.id) {
			ids = append(ids, c.id, c.base)
		}
	}
	all := contenders()
	return slices.DeleteFunc(all, func(c contender) bool { return !slices.Contains(ids, c.id) })
}

// stage is a scene set up for one contender.
type stage struct {
	*writes
	scene
	id string
	// before are the sums of the tables' balances when it was set up.
	before map[string]int64
}

// accounts returns the contender's own table in p, which shows its work alone.
func (w *stage) accounts(ctx context.Context, p *place) (string, error) {
	key := w.id + " in " + p.db.Name
	table := w.tables[key]
	if table == "" {
		var err error
		if table, err = p.accounts(ctx, fmt.Sprint(len(w.tables)), slices.Max(w.opts.Callers)*rowsPerCaller); err != nil {
			return "", err
		}
		w.tables[key] = table
	}
	n, err := p.number(ctx, "SELECT SUM(balance) FROM "+table)
	w.before[table] = n
	return table, err
}

// update is the UPDATE of an account by a target's bare driver, and the check of
// the balances.
func (w *stage) update(ctx context.Context, target *place) (pool *sql.DB, st statement, balances func(context.Context, int64) error, err error) {
	table, err := w.accounts(ctx, target)
	if err != nil {
		return nil, st, nil, err
	}
	pool, err = target.open(w.far, w.opts.Prepared, w.callers)
	if err != nil {
		return nil, st, nil, err
	}
	st, err = newStatement(ctx, pool, target.update(table), w.opts.Prepared)
	return pool, st, w.sum(target, table), err
}

// log returns the contender's own database for its log.
func (w *stage) log(driver string) (*place, error) {
	if p := w.logs[w.id]; p != nil {
		return p, nil
	}
	p, err := w.site.create(driver)
	if err == nil {
		w.logs[w.id] = p
	}
	return p, err
}

func (w *writes) run(ctx context.Context, progress func(string)) error {
	w.watch = w.site.processes(ctx)
	all := 0
	for _, sc := range w.opts.scenes() {
		all += len(w.chosen(sc))
	}
	for _, sc := range w.opts.scenes() {
		share := writesShare * float64(len(w.chosen(sc))) / float64(max(all, 1))
		if err := w.scene(ctx, sc, share, progress); err != nil {
			return fmt.Errorf("scene %q: %w", sc.name, err)
		}
	}
	return nil
}

// scene runs the contenders' turns.
func (w *writes) scene(ctx context.Context, sc scene, share float64, progress func(string)) (err error) {
	chosen := w.chosen(sc)
	if len(chosen) == 0 {
		return nil
	}
	w.turns[sc.name] = map[string][]turn{}
	setups := make([]*setup, len(chosen))
	defer func() {
		for _, s := range setups {
			if s != nil {
				err = errors.Join(err, s.close())
			}
		}
	}()
	for i, c := range chosen {
		if setups[i], err = c.open(ctx, &stage{writes: w, scene: sc, id: c.id, before: map[string]int64{}}); err != nil {
			return fmt.Errorf("%s: %w", c.id, err)
		}
	}
	start := time.Now()
	for round := 0; w.opts.another(round, start, share); round++ {
		progress(fmt.Sprintf("writes, scene %q: round %d", sc.name, round+1))
		took := map[string]turn{}
		for n, i := range inRound(chosen) {
			s, c := setups[i], chosen[i]
			t, err := s.run(ctx, sc.callers, w.opts.WarmUp, w.opts.Turn, w.watch,
				profilePath(w.opts.Profiles, c.id, sc.name, fmt.Sprint(round, "-", n)))
			if err == nil {
				err = s.awaitEmpty(ctx, true)
			}
			if err == nil {
				err = s.check(ctx, s.done)
			}
			s.idle()
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", c.id, round+1, err)
			}
			if first, ok := took[c.id]; ok {
				t = first.and(t)
			}
			took[c.id] = t
		}
		for id, t := range took {
			w.turns[sc.name][id] = append(w.turns[sc.name][id], t)
		}
	}
	for i, c := range chosen {
		if err := setups[i].used(sc); err != nil {
			return fmt.Errorf("%s: %w", c.id, err)
		}
	}
	return nil
}

// inRound returns the indices of the contenders in the order of their turns. A bare driver for
// comparison has one turn before the others and one after, so that a change in the machine's speed
// affects all.
func inRound(chosen []contender) []int {
	var order []int
	bare := 0
	for i, c := range chosen {
		if c.id == c.base {
			bare = i
		}
		order = append(order, i)
		if last := i+1 == len(chosen) || chosen[i+1].base != c.base; last && i > bare {
			order = append(order, bare)
		}
	}
	return order
}

// used returns an error unless logs, and promised receipts, were seen under load at least once. A
// single caller may always be observed between two writes.
func (s *setup) used(sc scene) error {
	switch {
	case s.unlogged && s.sawLogs:
		return errors.New("an entry was seen: the writes did not all go well")
	case s.outstanding == nil || sc.callers < 16:
		return nil
	case !s.sawLogs && !s.unlogged:
		return errors.New("no entry was ever seen under load: the writes were not logged")
	case !s.sawReceipts && s.receipts:
		return errors.New("no receipt was ever seen under load: the writes left none")
	}
	return nil
}

// ratio compares two contenders round by round.
func (w *writes) ratio(scene, id, base string, of func(turn) float64) (series, bool) {
	a, b := w.turns[scene][id], w.turns[scene][base]
	if len(a) == 0 || len(a) != len(b) {
		return nil, false
	}
	var s series
	for i := range a {
		s = append(s, of(a[i])/of(b[i]))
	}
	return s, true
}

func throughput(t turn) float64 { return t.perSecond }

func latency(t turn) float64 { return float64(t.p50) }
