package console

import (
	"context"
	"errors"
	"net/url"
	"sync"

	"github.com/bedsql/bed/internal/ops"
)

// A Log is one log of a console.
type Log struct {
	// Name distinguishes it from the others, in pages and addresses.
	Name string
	// Store gives nil for as long as the log could not be opened.
	Store func() *ops.Store
}

// source is a log with any store.
type source struct {
	name  string
	store func() store
}

func newIndex(cfg Config, logs []source) *site {
	x := &site{cfg: cfg, root: cfg.BasePath, store: func() store { return nil }, log: cfg.Logger}
	for _, l := range logs {
		below := cfg
		below.BasePath += "/logs/" + url.PathEscape(l.name)
		x.logs = append(x.logs, newSite(below, l))
	}
	for _, one := range x.logs {
		one.root, one.logs = x.root, x.logs
	}
	x.ping = func(ctx context.Context) error {
		return errors.Join(each(x.logs, func(one *site) error { return one.ping(ctx) })...)
	}
	x.events = newEvents(x.ping, func(ctx context.Context) any {
		return each(x.logs, func(one *site) *ops.Overview { return one.look(ctx) })
	})
	return x
}

// each asks all logs, side by side.
func each[T any](logs []*site, ask func(*site) T) []T {
	all := make([]T, len(logs))
	var wg sync.WaitGroup
	for i, one := range logs {
		wg.Go(func() { all[i] = ask(one) })
	}
	wg.Wait()
	return all
}

// logFigures are the figures of one log among several. Overview is nil if it cannot be reached.
type logFigures struct {
	Name     string        `json:"name"`
	Overview *ops.Overview `json:"overview"`
}

func (s *site) figures(ctx context.Context) []logFigures {
	return each(s.logs, func(one *site) logFigures {
		o, _ := one.overview(ctx)
		return logFigures{one.name, o}
	})
}

// logView is one of several logs as the page shows it.
type logView struct {
	Name, URL string
	Down      bool
	Jobs      int
	totals
}

func (s *site) indexPage(in *input) (any, error) {
	var logs []logView
	for i, f := range s.figures(in.Context()) {
		v := logView{Name: f.Name, URL: s.logs[i].cfg.BasePath, Down: f.Overview == nil}
		if !v.Down {
			v.Jobs, v.totals = len(f.Overview.Jobs), totalsOf(in.l, f.Overview)
		}
		logs = append(logs, v)
	}
	return logs, nil
}

func (s *site) indexCall(in *input) (any, error) {
	if in.query(); in.err != nil {
		return nil, in.err
	}
	return map[string]any{"logs": s.figures(in.Context())}, nil
}
