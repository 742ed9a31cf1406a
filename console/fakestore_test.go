package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// fakeStore is a log in memory. The console's use of a store is tested on it, and on the real one
// in real_test.go.
type fakeStore struct {
	mu      sync.Mutex
	entries []*ops.Detail          // in the order of ids
	values  map[string]*ops.Detail // what Reveal gives
	audit   []ops.Record
	paused  map[string]bool
	limits  map[string]int
	sources []string
	trial   *ops.Trial
	// grouping is awaited by Kinds; nil for nothing.
	grouping chan struct{}
	// err is the error of every call, if any.
	err error
}

var fakeNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	hostileSQL   = "INSERT INTO t VALUES ('<script>alert(1)</script>\u202e', \"</code><img src=x onerror=alert(2)>\")"
	hostileError = "Error 1644 (45000): <script>alert('e')</script>\x1b[31m\u202e"
	secretValue  = "s3cr3t-value"
	bigValue     = "18446744073709551615"
)

func fakeID(i int) string { return fmt.Sprintf("0192f0c1-0000-7000-8000-%09d000", i) }

func newFakeStore() *fakeStore {
	f := &fakeStore{
		values: map[string]*ops.Detail{}, paused: map[string]bool{}, limits: map[string]int{}, sources: []string{"127.0.0.1:3306/ledger", "orders"},
		trial: &ops.Trial{Rows: []int64{1 << 62}, Notes: []string{"Sequences stay advanced."}, Took: 3 * time.Millisecond},
	}
	next := fakeNow.Add(time.Minute)
	for i := range 25 {
		d := &ops.Detail{Entry: ops.Entry{
			ID: fakeID(i), TransactionID: fakeID(i), DataSource: "orders", State: ops.Parked, CreatedAt: fakeNow.Add(-time.Hour + time.Duration(i)*time.Second),
			Tries: 3, LastError: "Error 1205 (HY000): Lock wait timeout exceeded", Statements: []ops.Statement{{SQL: "UPDATE orders SET paid = ? WHERE id = ?"}},
		}, Siblings: []ops.Entry{}, Verdict: "notApplied", VerdictText: "not applied", NextIs: ops.NextOperator, Attempts: []ops.Attempt{{At: fakeNow, Origin: "async job", Class: "retryable", Err: "Error 1205"}}}
		switch i {
		case 1:
			d.Statements[0].SQL, d.LastError = hostileSQL, hostileError
		case 2:
			d.NextIs = ops.NextLease
			d.State, d.NextTry, d.DataSource = ops.Leased, &next, "127.0.0.1:3306/ledger"
		case 3:
			d.State, d.NextTry, d.NextIs = ops.Waiting, &next, ops.NextLater
			d.Siblings = []ops.Entry{{ID: fakeID(4), TransactionID: fakeID(3), DataSource: "orders", State: ops.Parked, CreatedAt: fakeNow, Statements: d.Statements}}
		case 4:
			d.TransactionID = fakeID(3)
		}
		shown := *d
		shown.Revealed, shown.LastError = true, "Error 1062 (23000): Duplicate entry '"+secretValue+"' for key 'u'"
		shown.Attempts = []ops.Attempt{{At: fakeNow, Origin: "async job", Class: "retryable", Err: secretValue}}
		shown.Statements = slices.Clone(d.Statements)
		shown.Statements[0].Parameters = []ops.Parameter{{Ordinal: 1, Type: "string", Value: secretValue}, {Ordinal: 2, Type: "uint64", Value: bigValue}}
		f.values[d.ID] = &shown
		f.entries = append(f.entries, d)
	}
	return f
}

func (f *fakeStore) match(q ops.Filter) (list []*ops.Detail) {
	for _, d := range f.entries {
		text := slices.ContainsFunc(d.Statements, func(s ops.Statement) bool { return strings.Contains(s.SQL, q.Text) }) || strings.Contains(d.LastError, q.Text)
		if (q.DataSource == "" || d.DataSource == q.DataSource) && (q.State == "" || d.State == q.State) && text &&
			(q.Transaction == "" || d.TransactionID == q.Transaction) && (q.Kind == "" || q.Kind == d.LastError) && fakeNow.Sub(d.CreatedAt) >= q.OlderThan {
			list = append(list, d)
		}
	}
	return list
}

func (f *fakeStore) lock() (func(), error) { f.mu.Lock(); return f.mu.Unlock, f.err }

func (f *fakeStore) Ping(context.Context) error { defer f.mu.Unlock(); f.mu.Lock(); return f.err }

func (f *fakeStore) Overview(_ context.Context, o ops.OverviewOptions) (*ops.Overview, error) {
	unlock, err := f.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	v := &ops.Overview{At: fakeNow, Minutes: []ops.Minute{}, Funnel: ops.Funnel{AtOnce: 3}, Jobs: []ops.Job{{ID: "j", Name: "job on <b>host</b>", LastSeen: fakeNow}}}
	yes, oldest := true, f.entries[0].CreatedAt
	for _, name := range f.sources {
		ds := ops.DataSource{Name: name, Reachable: &yes, Since: &oldest, Paused: f.paused[name], PerSecond: f.limits[name], Configured: true, Oldest: &oldest, OldestID: f.entries[0].ID, Rates: ops.Funnel{AtOnce: 1.5}}
		for _, d := range f.match(ops.Filter{DataSource: name}) {
			*map[ops.State]*int{ops.Waiting: &ds.Waiting, ops.Leased: &ds.Leased, ops.Parked: &ds.Parked}[d.State]++
		}
		v.DataSources = append(v.DataSources, ds)
		for _, d := range f.match(ops.Filter{DataSource: name}) {
			if d.Group == ops.GroupHalfCompensated {
				v.HalfCompensated++
			}
		}
		if o.Hours > 0 {
			v.Minutes = append(v.Minutes, ops.Minute{Start: fakeNow.Add(-time.Hour), DataSource: name, Funnel: ops.Funnel{AtOnce: 12, Parked: 1}})
		}
	}
	return v, nil
}

func (f *fakeStore) Entries(_ context.Context, q ops.Filter, p ops.Page) (*ops.Entries, error) {
	unlock, err := f.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	out := &ops.Entries{Entries: []ops.Entry{}}
	all := f.match(q)
	if p.Newest {
		slices.Reverse(all)
	}
	for _, d := range all {
		if p.After != "" && (d.ID == p.After || d.ID < p.After != p.Newest) {
			continue
		}
		if len(out.Entries) == p.Limit {
			out.Next = out.Entries[p.Limit-1].ID
			break
		}
		out.Entries = append(out.Entries, d.Entry)
	}
	return out, nil
}

func (f *fakeStore) Count(_ context.Context, q ops.Filter, most int) (ops.Count, error) {
	unlock, err := f.lock()
	defer unlock()
	return ops.Count{N: len(f.match(q))}, err
}

func (f *fakeStore) Kinds(ctx context.Context, q ops.Filter) (*ops.Kinds, error) {
	if f.grouping != nil {
		select {
		case <-f.grouping:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	unlock, err := f.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	counts := map[string]*ops.Kind{}
	for _, d := range f.match(q) {
		if counts[d.LastError] == nil {
			counts[d.LastError] = &ops.Kind{Key: d.LastError, DataSource: d.DataSource, Text: d.LastError, Oldest: d.ID, CreatedAt: d.CreatedAt}
		}
		counts[d.LastError].Count++
	}
	out := &ops.Kinds{Kinds: []ops.Kind{}}
	for _, k := range counts {
		out.Kinds = append(out.Kinds, *k)
	}
	slices.SortFunc(out.Kinds, func(a, b ops.Kind) int { return cmp.Compare(b.Count, a.Count) })
	return out, nil
}

func (f *fakeStore) Progress(_ context.Context, ids []string) (p ops.Progress, err error) {
	unlock, err := f.lock()
	defer unlock()
	for _, id := range ids {
		switch d, ferr := f.find(id); {
		case ferr != nil:
			p.Gone++
		case d.State == ops.Parked:
			p.Parked++
		default:
			p.Waiting++
		}
	}
	return p, err
}

func (f *fakeStore) find(id string) (*ops.Detail, error) {
	for _, d := range f.entries {
		if d.ID == id {
			return d, f.err
		}
	}
	return nil, cmp.Or(f.err, txlog.ErrNotFound)
}

func (f *fakeStore) Entry(_ context.Context, id string) (*ops.Detail, error) {
	unlock, _ := f.lock()
	defer unlock()
	d, err := f.find(id)
	if err != nil {
		return nil, err
	}
	own := *d
	own.Kind = d.LastError
	return &own, nil
}

func (f *fakeStore) record(a ops.Action, what string, n int, by ops.By) {
	f.audit = slices.Insert(f.audit, 0, ops.Record{ID: fmt.Sprintf("%06d", 999999-len(f.audit)), Time: fakeNow, Who: by.Who, Action: a, What: what, Count: n, Reason: by.Reason})
}

func (f *fakeStore) Reveal(_ context.Context, id string, by ops.By) (*ops.Detail, error) {
	unlock, _ := f.lock()
	defer unlock()
	if _, err := f.find(id); err != nil {
		return nil, err
	}
	f.record(ops.Reveal, id, 1, by)
	return f.values[id], nil
}

func (f *fakeStore) Try(_ context.Context, id string, by ops.By) (*ops.Trial, error) {
	unlock, _ := f.lock()
	defer unlock()
	if _, err := f.find(id); err != nil {
		return nil, err
	}
	t := *f.trial
	return &t, nil
}

func (f *fakeStore) do(a ops.Action, d *ops.Detail) error {
	if d.State == ops.Leased {
		return txlog.ErrLeased
	}
	switch a {
	case ops.Retry:
		d.State = ops.Waiting
	case ops.Park:
		d.State = ops.Parked
	case ops.Discard:
		f.entries = slices.DeleteFunc(f.entries, func(e *ops.Detail) bool { return e == d })
	default:
		return errors.New("an action that is none")
	}
	return nil
}

func (f *fakeStore) Act(_ context.Context, a ops.Action, id string, by ops.By) error {
	unlock, _ := f.lock()
	defer unlock()
	d, err := f.find(id)
	if err != nil {
		return err
	}
	if err := f.do(a, d); err != nil {
		return err
	}
	f.record(a, id, 1, by)
	return nil
}

func (f *fakeStore) Compensate(_ context.Context, id string, by ops.By) (*ops.Compensated, error) {
	if err := by.Check(ops.Compensate); err != nil {
		return nil, err
	}
	if id == "none" {
		return nil, txlog.ErrNotFound
	}
	return &ops.Compensated{TransactionID: id, Parts: 2, DataSource: "stock"}, nil
}

func (f *fakeStore) Amend(_ context.Context, id string, to ops.Amendment, by ops.By) (*ops.Amended, error) {
	unlock, _ := f.lock()
	defer unlock()
	d, err := f.find(id)
	switch {
	case err != nil:
		return nil, err
	case d.State != ops.Parked:
		return nil, fmt.Errorf("%w: it is not parked: park it first", ops.ErrNotAmendable)
	case to.SQL == "" && to.Parameters == "":
		return nil, fmt.Errorf("%w: an amendment needs an SQL text or parameters", ops.ErrInvalid)
	}
	re := ops.Replaced{Entry: id, Statement: 1, Old: ops.Text{SQL: d.Statements[0].SQL, Parameters: json.RawMessage(`["` + secretValue + `"]`)}, New: ops.Text{SQL: to.SQL, Parameters: json.RawMessage(`[]`)}}
	what, _ := json.Marshal(re)
	d.Statements = []ops.Statement{{SQL: to.SQL}}
	f.record(ops.Amend, string(what), 1, by)
	return &ops.Amended{ID: id, Statement: 1}, nil
}

func (f *fakeStore) AmendAll(_ context.Context, sel *ops.Selection, to ops.Amendment, by ops.By, dry bool) (*ops.AmendedAll, error) {
	unlock, _ := f.lock()
	defer unlock()
	if sel.Filter.Kind == "" || to.SQL == "" {
		return nil, fmt.Errorf("%w: entries are amended by their kind: name one", ops.ErrInvalid)
	}
	out := &ops.AmendedAll{Kept: []ops.Kept{{Why: "it must not be run again: x", Entries: 1, Oldest: sel.IDs[0]}}, Statement: 1, Kind: sel.Filter.Kind, Tried: sel.IDs[0], Trial: &ops.Trial{Rows: []int64{1}}}
	out.Changed = sel.IDs
	if dry {
		return out, nil
	}
	for _, id := range sel.IDs {
		if d, err := f.find(id); err == nil {
			d.Statements = []ops.Statement{{SQL: to.SQL}}
		}
	}
	what, _ := json.Marshal(ops.Replaced{Statement: 1, New: ops.Text{SQL: to.SQL}, Bulk: &ops.Bulk{Counted: len(sel.IDs)}})
	f.record(ops.Amend, string(what), len(sel.IDs), by)
	return out, nil
}

func (f *fakeStore) Select(_ context.Context, q ops.Filter) (*ops.Selection, error) {
	unlock, err := f.lock()
	defer unlock()
	sel := &ops.Selection{Filter: q, At: fakeNow}
	for _, d := range f.match(q) {
		if d.State != ops.Leased {
			sel.IDs = append(sel.IDs, d.ID)
		}
	}
	return sel, err
}

func (f *fakeStore) ActAll(_ context.Context, a ops.Action, sel *ops.Selection, by ops.By) (done ops.Done, err error) {
	unlock, err := f.lock()
	defer unlock()
	if err != nil {
		return done, err
	}
	for _, id := range sel.IDs {
		d, err := f.find(id)
		switch {
		case err != nil:
			done.Gone++
		case f.do(a, d) != nil:
			done.Left++
		default:
			done.Changed = append(done.Changed, id)
		}
	}
	q := sel.Filter
	q.Reveal = false
	what, _ := json.Marshal(map[string]any{"state": q.State, "gone": done.Gone, "left": done.Left})
	f.record(a, string(what), len(done.Changed), by)
	return done, nil
}

func (f *fakeStore) Control(_ context.Context, a ops.Action, name string, n int, by ops.By) error {
	unlock, err := f.lock()
	defer unlock()
	if err != nil {
		return err
	}
	if !slices.Contains(f.sources, name) {
		return ops.ErrUnknownDataSource
	}
	if a == ops.Limit {
		f.limits[name] = n
	} else {
		f.paused[name] = a == ops.Pause
	}
	f.record(a, name, 0, by)
	return nil
}

func (f *fakeStore) RevealAudit(_ context.Context, p ops.Page, by ops.By) (*ops.Audit, error) {
	unlock, err := f.lock()
	f.record(ops.Reveal, "audit", 0, by)
	unlock()
	if err != nil {
		return nil, err
	}
	return f.records(p)
}

func (f *fakeStore) Audit(_ context.Context, p ops.Page) (*ops.Audit, error) {
	a, err := f.records(p)
	if err == nil {
		for i := range a.Records {
			a.Records[i].What = strings.ReplaceAll(a.Records[i].What, secretValue, "?")
		}
	}
	return a, err
}

func (f *fakeStore) records(p ops.Page) (*ops.Audit, error) {
	unlock, err := f.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	out := &ops.Audit{Records: []ops.Record{}}
	for _, r := range f.audit {
		if p.After != "" && r.ID >= p.After {
			continue
		}
		if len(out.Records) == p.Limit {
			out.Next = out.Records[p.Limit-1].ID
			break
		}
		out.Records = append(out.Records, r)
	}
	return out, nil
}

// state copies everything that requests may change.
func (f *fakeStore) state() string {
	unlock, _ := f.lock()
	defer unlock()
	var b strings.Builder
	for _, d := range f.entries {
		fmt.Fprintln(&b, d.ID, d.State, d.Statements[0].SQL)
	}
	fmt.Fprintln(&b, len(f.audit), f.paused, f.limits)
	return b.String()
}
