package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/ops"
)

// A site is what pages and calls of a log work with, or those of the index of several.
type site struct {
	// cfg.BasePath is where the site begins, root where the console does.
	cfg  Config
	root string
	// logs are the sites of several logs, and name is the log's of this one.
	logs []*site
	name string
	// store gives nil for as long as the log could not be opened.
	store func() Store
	// ping asks whether what the site shows can be reached.
	ping   func(context.Context) error
	log    logrus.FieldLogger
	events *events
	// counted is what bulk actions were counted for.
	counted *counted
}

func newSite(cfg Config, l Log) *site {
	s := &site{cfg: cfg, root: cfg.BasePath, name: l.Name, store: l.Store, log: cfg.Logger, counted: &counted{}}
	s.ping = func(ctx context.Context) error {
		if store := s.store(); store != nil {
			return store.Ping(ctx)
		}
		return errNoLog
	}
	s.events = newEvents(s.ping, func(ctx context.Context) any { return s.look(ctx) })
	return s
}

// look gives what the overview shows, but for what changes without a change; nil if the
// log cannot be reached.
func (s *site) look(ctx context.Context) *ops.Overview {
	o, err := s.overview(ctx)
	if err != nil {
		return nil
	}
	o.At = time.Time{}
	for i := range o.Jobs {
		o.Jobs[i].LastSeen = time.Time{}
	}
	return o
}

func (s *site) overview(ctx context.Context) (*ops.Overview, error) {
	store := s.store()
	if store == nil {
		return nil, errNoLog
	}
	return store.Overview(ctx, ops.OverviewOptions{})
}

// Who answers: pages are looked at, forms ask before something is done, api is for
// programs, service is what a process or a page needs beside them.
type (
	pages   struct{ *site }
	forms   struct{ *site }
	api     struct{ *site }
	service struct{ *site }
)

// entryOf is the entry that the path names.
func (s *site) entryOf(r *http.Request) (*ops.Detail, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	return s.store().Entry(r.Context(), id)
}

// revealed is the entry that the path names, with its values.
func (s *site) revealed(r *http.Request, p person) (*ops.Detail, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	by, err := p.by(ops.Reveal, "")
	if err != nil {
		return nil, err
	}
	return s.store().Reveal(r.Context(), id, by)
}

// try tries the entry that the path names.
func (s *site) try(r *http.Request, p person, reason string) (*ops.Trial, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	by, err := p.by(ops.Try, reason)
	if err != nil {
		return nil, err
	}
	return s.store().Try(r.Context(), id, by)
}

// done says what was done, and of a bulk action what was not.
type done struct {
	Action ops.Action `json:"action"`
	Count  int        `json:"count"`
	Gone   int        `json:"gone"`
	Left   int        `json:"left"`
}

// What is done to entries, and to data sources.
var (
	onEntries = []ops.Action{ops.Retry, ops.Park, ops.Discard}
	onSources = []ops.Action{ops.Pause, ops.Resume, ops.Limit}
)

// actionOf is the action of that name, one of these.
func actionOf(name string, these []ops.Action) (ops.Action, error) {
	if slices.Contains(these, ops.Action(name)) {
		return ops.Action(name), nil
	}
	return "", errNoAction
}

// act does something to the entry that the path names.
func (s *site) act(r *http.Request, p person, a ops.Action, reason string) (id string, err error) {
	if id, err = idOf(r); err != nil {
		return "", err
	}
	by, err := p.by(a, reason)
	if err == nil {
		err = s.store().Act(r.Context(), a, id, by)
	}
	s.events.changed()
	return id, err
}

// bulk acts on what a filter matched when it was counted; without until on what it
// matches now. count is how many that is; changed are the ids of those it was done to.
func (s *site) bulk(r *http.Request, p person, a ops.Action, said field) (d done, changed []string, err error) {
	by, err := p.by(a, said("reason"))
	if err != nil {
		return done{}, nil, err
	}
	f, err := filterOf(said, p)
	if err != nil {
		return done{}, nil, err
	}
	count, err := number("count", said("count"), ops.MaxBulk)
	if err != nil {
		return done{}, nil, err
	}
	var sel *ops.Selection
	if until := said("until"); until != "" {
		sel, err = s.counted.find(until, f)
	} else {
		sel, err = s.store().Select(r.Context(), f)
	}
	if err != nil {
		return done{}, nil, err
	}
	if n := len(sel.IDs); n != count || sel.More {
		return done{}, nil, &failure{status: http.StatusConflict, text: "Nothing was changed: the filter does not match what was counted. Look again.", detail: fmt.Sprintf("(%d, %d)", count, n)}
	}
	did, err := s.store().ActAll(r.Context(), a, sel, by)
	s.events.changed()
	return done{a, len(did.Changed), did.Gone, did.Left}, did.Changed, err
}

// control pauses, resumes or limits the data source that the path names.
func (s *site) control(r *http.Request, p person, said field) (a ops.Action, err error) {
	if a, err = actionOf(r.PathValue("action"), onSources); err != nil {
		return a, err
	}
	by, err := p.by(a, said("reason"))
	n := 0
	if err == nil && a == ops.Limit {
		n, err = number("perSecond", said("perSecond"), ops.MaxPerSecond)
	}
	if err == nil {
		err = s.store().Control(r.Context(), a, r.PathValue("name"), n, by)
	}
	s.events.changed()
	return a, err
}
