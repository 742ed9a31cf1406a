package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/bedsql/bed/internal/ops"
)

// A Log is one of several that a console shows together.
type Log struct {
	// Name tells it from the others, in pages and addresses.
	Name string
	// Store gives nil for as long as the log could not be opened.
	Store func() Store
}

// together presents several logs as one. What is looked at is put together; what
// is done to an entry is done in the log that holds it; what is done to a data
// source, in each log that knows it. A bulk action is done in one log or not at
// all: no transaction spans two.
type together []Log

var _ Store = together(nil)

// one is the store of several logs; nil while none is open.
func (all together) one() Store {
	for _, l := range all {
		if l.Store() != nil {
			return all
		}
	}
	return nil
}

// each asks all logs side by side. The errors are in their order.
func (all together) each(ask func(i int, s Store) error) []error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, l := range all {
		wg.Go(func() {
			if s := l.Store(); s == nil {
				errs[i] = errNoLog
			} else {
				errs[i] = ask(i, s)
			}
		})
	}
	wg.Wait()
	return errs
}

func (all together) Ping(ctx context.Context) error {
	return errors.Join(all.each(func(_ int, s Store) error { return s.Ping(ctx) })...)
}

// Overview leaves out the logs that do not answer, and names them.
func (all together) Overview(ctx context.Context, o ops.OverviewOptions) (*ops.Overview, error) {
	parts := make([]*ops.Overview, len(all))
	errs := all.each(func(i int, s Store) (err error) { parts[i], err = s.Overview(ctx, o); return err })
	sum := &ops.Overview{}
	for i, part := range parts {
		name := all[i].Name
		if errs[i] != nil {
			sum.UnreachableLogs = append(sum.UnreachableLogs, name)
			continue
		}
		if part.At.After(sum.At) {
			sum.At = part.At
		}
		for _, ds := range part.DataSources {
			ds.Log = name
			sum.DataSources = append(sum.DataSources, ds)
		}
		for _, j := range part.Jobs {
			j.Log = name
			sum.Jobs = append(sum.Jobs, j)
		}
		for _, off := range part.Off {
			sum.Off = append(sum.Off, name+": "+off)
		}
		sum.Minutes = append(sum.Minutes, part.Minutes...)
	}
	if len(sum.UnreachableLogs) == len(all) {
		return nil, errors.Join(errs...)
	}
	slices.SortStableFunc(sum.Minutes, func(a, b ops.Minute) int { return a.Start.Compare(b.Start) })
	return sum, nil
}

// Entries merges the pages in the order of the ids, across all logs: up to where
// each of them has been searched.
func (all together) Entries(ctx context.Context, f ops.Filter, p ops.Page) (*ops.Entries, error) {
	parts := make([]*ops.Entries, len(all))
	if err := errors.Join(all.each(func(i int, s Store) (err error) { parts[i], err = s.Entries(ctx, f, p); return err })...); err != nil {
		return nil, err
	}
	sum, end := &ops.Entries{}, ""
	for _, part := range parts {
		if part.Next != "" && (end == "" || part.Next < end) {
			end = part.Next
		}
	}
	for i, part := range parts {
		for _, e := range part.Entries {
			if end == "" || e.ID <= end {
				e.Log = all[i].Name
				sum.Entries = append(sum.Entries, e)
			}
		}
	}
	slices.SortFunc(sum.Entries, func(a, b ops.Entry) int { return strings.Compare(a.ID, b.ID) })
	sum.Next = end
	if limit := cmp.Or(p.Limit, apiPage); len(sum.Entries) > limit {
		sum.Entries = sum.Entries[:limit]
		sum.Next = sum.Entries[limit-1].ID
	}
	return sum, nil
}

func (all together) Count(ctx context.Context, f ops.Filter, most int) (ops.Count, error) {
	counts, err := all.counts(ctx, f, most)
	sum := ops.Count{}
	for _, n := range counts {
		sum.N += n.N
		sum.More = sum.More || n.More
	}
	return sum, err
}

func (all together) counts(ctx context.Context, f ops.Filter, most int) ([]ops.Count, error) {
	counts := make([]ops.Count, len(all))
	err := errors.Join(all.each(func(i int, s Store) (err error) { counts[i], err = s.Count(ctx, f, most); return err })...)
	return counts, err
}

func (all together) Kinds(ctx context.Context, f ops.Filter) (*ops.Kinds, error) {
	parts := make([]*ops.Kinds, len(all))
	if err := errors.Join(all.each(func(i int, s Store) (err error) { parts[i], err = s.Kinds(ctx, f); return err })...); err != nil {
		return nil, err
	}
	sum := &ops.Kinds{}
	at := map[string]int{}
	for _, part := range parts {
		sum.More = sum.More || part.More
		for _, k := range part.Kinds {
			i, known := at[k.Key]
			if !known {
				at[k.Key] = len(sum.Kinds)
				sum.Kinds = append(sum.Kinds, k)
				continue
			}
			same := &sum.Kinds[i]
			same.Count += k.Count
			same.More = same.More || k.More
			if k.Oldest < same.Oldest {
				same.Oldest, same.CreatedAt = k.Oldest, k.CreatedAt
			}
		}
	}
	slices.SortFunc(sum.Kinds, func(a, b ops.Kind) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Oldest, b.Oldest)) })
	return sum, nil
}

// holder does something in the log that holds an entry. What another log says
// counts only if none holds it: one that cannot be reached may hold it.
func (all together) holder(do func(l Log, s Store) error) error {
	missing := ops.ErrNotFound
	for _, l := range all {
		s := l.Store()
		if s == nil {
			missing = errNoLog
			continue
		}
		err := do(l, s)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ops.ErrNotFound):
		case failureOf(err).status < 500 || errors.Is(err, ops.ErrTarget):
			return err
		default:
			missing = err
		}
	}
	return missing
}

func (all together) Entry(ctx context.Context, id string) (d *ops.Detail, err error) {
	err = all.holder(func(l Log, s Store) error {
		found, err := s.Entry(ctx, id)
		if err != nil {
			return err
		}
		found.Log = l.Name
		for i := range found.Siblings {
			found.Siblings[i].Log = l.Name
		}
		d = found
		return nil
	})
	return d, err
}

func (all together) Reveal(ctx context.Context, id string, by ops.By) (v *ops.Revealed, err error) {
	err = all.holder(func(_ Log, s Store) (err error) { v, err = s.Reveal(ctx, id, by); return err })
	return v, err
}

func (all together) Try(ctx context.Context, id string, by ops.By) (t *ops.Trial, err error) {
	err = all.holder(func(_ Log, s Store) (err error) { t, err = s.Try(ctx, id, by); return err })
	return t, err
}

func (all together) Act(ctx context.Context, a ops.Action, id string, by ops.By) error {
	return all.holder(func(_ Log, s Store) error { return s.Act(ctx, a, id, by) })
}

// ActAll acts where the filter matches entries of one log.
func (all together) ActAll(ctx context.Context, a ops.Action, f ops.Filter, count int, by ops.By) error {
	counts, err := all.counts(ctx, f, ops.MaxBulk)
	if err != nil {
		return err
	}
	sum, names := 0, []string(nil)
	var in Store
	for i, n := range counts {
		if sum += n.N; n.N > 0 {
			names, in = append(names, all[i].Name), all[i].Store()
		}
	}
	switch {
	case sum != count:
		return &ops.ConflictError{Counted: count, Matches: sum}
	case len(names) > 1:
		return &ops.ConflictError{Counted: count, Matches: sum, Logs: names}
	case in == nil:
		return nil
	}
	return in.ActAll(ctx, a, f, count, by)
}

// spread names the logs that hold what a filter matches.
func (all together) spread(ctx context.Context, f ops.Filter) (names []string, err error) {
	counts, err := all.counts(ctx, f, 1)
	for i, n := range counts {
		if n.N > 0 {
			names = append(names, all[i].Name)
		}
	}
	return names, err
}

func (all together) Pause(ctx context.Context, name string, by ops.By) error {
	return all.control(func(s Store) error { return s.Pause(ctx, name, by) })
}

func (all together) Resume(ctx context.Context, name string, by ops.By) error {
	return all.control(func(s Store) error { return s.Resume(ctx, name, by) })
}

func (all together) Limit(ctx context.Context, name string, perSecond int, by ops.By) error {
	return all.control(func(s Store) error { return s.Limit(ctx, name, perSecond, by) })
}

// control does something in each log that knows a data source; one of them has to.
func (all together) control(do func(Store) error) error {
	var errs []error
	unknown := 0
	for _, err := range all.each(func(_ int, s Store) error { return do(s) }) {
		if errors.Is(err, ops.ErrUnknownDataSource) {
			unknown++
			continue
		}
		errs = append(errs, err)
	}
	if unknown == len(all) {
		return ops.ErrUnknownDataSource
	}
	return errors.Join(errs...)
}

func (all together) Audit(ctx context.Context, p ops.Page) (*ops.Audit, error) {
	parts := make([]*ops.Audit, len(all))
	if err := errors.Join(all.each(func(i int, s Store) (err error) { parts[i], err = s.Audit(ctx, p); return err })...); err != nil {
		return nil, err
	}
	sum := &ops.Audit{}
	more := false
	for i, part := range parts {
		more = more || part.Next != ""
		for _, r := range part.Records {
			r.Log = all[i].Name
			sum.Records = append(sum.Records, r)
		}
	}
	slices.SortFunc(sum.Records, func(a, b ops.Record) int { return strings.Compare(b.ID, a.ID) })
	limit := cmp.Or(p.Limit, apiPage)
	if len(sum.Records) > limit || more {
		sum.Records = sum.Records[:min(limit, len(sum.Records))]
		sum.Next = sum.Records[len(sum.Records)-1].ID
	}
	return sum, nil
}
