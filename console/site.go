package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/ops"
)

// A site serves the pages and calls of one log, or of the index of several.
type site struct {
	// cfg.BasePath is the path of the site, root the path of the console.
	cfg  Config
	root string
	// logs are the sites of several logs, and name is the log's of this one.
	logs []*site
	name string
	// store gives nil for as long as the log could not be opened.
	store func() store
	// ping checks whether the site's source is reachable.
	ping   func(context.Context) error
	log    logrus.FieldLogger
	events *events
	// counted holds the selections counted for bulk actions.
	counted *counted
	// known are kinds of errors.
	known *known
}

func newSite(cfg Config, l source) *site {
	s := &site{cfg: cfg, root: cfg.BasePath, name: l.name, store: l.store, log: cfg.Logger, counted: &counted{}, known: &known{}}
	s.ping = func(ctx context.Context) error {
		if store := s.store(); store != nil {
			return store.Ping(ctx)
		}
		return errNoLog
	}
	s.events = newEvents(s.ping, func(ctx context.Context) any { return s.look(ctx) })
	return s
}

// look returns the overview without its ever-changing parts; nil if the log cannot be reached.
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

// entry loads the entry in the path, with its values if values is set.
func (s *site) entry(r *http.Request, p person, values bool) (*ops.Detail, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	if !values {
		return s.store().Entry(r.Context(), id)
	}
	by, err := p.by(ops.Reveal, "")
	if err != nil {
		return nil, err
	}
	return s.store().Reveal(r.Context(), id, by)
}

// done describes a finished action, and the omissions of a bulk action.
type done struct {
	Action ops.Action `json:"action"`
	Count  int        `json:"count"`
	Gone   int        `json:"gone"`
	Left   int        `json:"left"`
}

// amendedAll says more of a bulk amendment.
type amendedAll struct {
	done
	*ops.AmendedAll
	Trial *trialAnswer `json:"trial"`
}

// The actions on entries, and on data sources.
var (
	onEntries = []ops.Action{ops.Retry, ops.Park, ops.Discard}
	onSources = []ops.Action{ops.Pause, ops.Resume, ops.Limit}
)

// actionOf returns the action in the path, one of these.
func actionOf(r *http.Request, these []ops.Action) (ops.Action, error) {
	if a := ops.Action(r.PathValue("action")); slices.Contains(these, a) {
		return a, nil
	}
	return "", errNoAction
}

// act applies an action to the entry in the path, or tries the entry.
func (s *site) act(r *http.Request, p person) (any, error) {
	said, err := bodyOf(r, "reason")
	if err != nil {
		return nil, err
	}
	a, err := actionOf(r, append([]ops.Action{ops.Try, ops.Skip}, onEntries...))
	if err != nil {
		return nil, err
	}
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	by, err := p.by(a, said("reason"))
	if err != nil {
		return nil, err
	}
	if a == ops.Try {
		return s.try(r, id, by)
	}
	err = s.store().Act(r.Context(), a, id, by)
	s.events.changed()
	to := s.cfg.BasePath + "/entries/" + url.PathEscape(id)
	if a == ops.Discard {
		to = with(to+"/next", "kind", r.URL.Query().Get("kind"))
	}
	return s.afterwards(r, p, done{Action: a, Count: 1}, err, to)
}

// compensate compensates the group in the path.
func (s *site) compensate(r *http.Request, p person) (any, error) {
	said, err := bodyOf(r, "reason")
	if err != nil {
		return nil, err
	}
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	by, err := p.by(ops.Compensate, said("reason"))
	if err != nil {
		return nil, err
	}
	started, err := s.store().Compensate(r.Context(), id, by)
	s.events.changed()
	if isAPI(r) {
		return started, err
	}
	return s.afterwards(r, p, done{Action: ops.Compensate, Count: 1}, err, s.cfg.BasePath+"/entries/"+url.PathEscape(id))
}

// amend replaces a statement of the entry in the path.
func (s *site) amend(r *http.Request, p person) (any, error) {
	said, err := bodyOf(r, "sql", "parameters", "statement", "reason")
	if err != nil {
		return nil, err
	}
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	to := ops.Amendment{SQL: said("sql"), Parameters: said("parameters")}
	if to.Statement, err = statementOf(said); err != nil {
		return nil, err
	}
	by, err := p.by(ops.Amend, said("reason"))
	var amended *ops.Amended
	if err == nil {
		amended, err = s.store().Amend(r.Context(), id, to, by)
		s.events.changed()
	}
	if isAPI(r) {
		return amended, err
	}
	if f := failureOf(err); err != nil && f.status < 500 && f.status != http.StatusNotFound {
		return s.askAmend(r, p, said, f)
	}
	return s.afterwards(r, p, done{Action: ops.Amend, Count: 1}, err, s.cfg.BasePath+"/entries/"+url.PathEscape(id))
}

// audit is a page of the audit, with the values of amended parameters on request.
func (s *site) audit(r *http.Request, p person, page ops.Page) (*ops.Audit, error) {
	if !wantsValues(r) {
		return s.store().Audit(r.Context(), page)
	}
	by, err := p.by(ops.Reveal, "")
	if err != nil {
		return nil, err
	}
	return s.store().RevealAudit(r.Context(), page, by)
}

// try answers a call with the trial alone, a form with the entry too.
func (s *site) try(r *http.Request, id string, by ops.By) (any, error) {
	t, err := s.store().Try(r.Context(), id, by)
	if err != nil {
		return nil, err
	}
	if isAPI(r) {
		return trialOf(t), nil
	}
	d, err := s.store().Entry(r.Context(), id)
	if err != nil {
		return nil, err
	}
	l := languageOf(r)
	v := s.viewOf(l, d)
	v.Trial, v.TrialText, v.Live = t, trialText(l, t), false
	return v, nil
}

// bulk acts on the entries counted at until; without until, on the current matches. count is their
// expected number.
func (s *site) bulk(r *http.Request, p person) (any, error) {
	said, err := bodyOf(r, "filter", "action", "count", "until", "reason", "sql", "parameters", "statement")
	if err != nil {
		return nil, err
	}
	if r.PathValue("action") == "" {
		r.SetPathValue("action", string(ops.Amend))
	}
	if isAPI(r) {
		if said("filter") == "" {
			return nil, invalid("the body has no filter; an empty one matches everything")
		}
		r.SetPathValue("action", said("action"))
	}
	a, err := actionOf(r, append([]ops.Action{ops.Amend}, onEntries...))
	switch {
	case err != nil:
		return nil, err
	case a == ops.Amend && p.Role < Reveal:
		return nil, &failure{status: http.StatusForbidden, text: "Your role does not allow this.", detail: Reveal.String()}
	case a != ops.Amend && said("sql")+said("parameters")+said("statement") != "":
		return nil, invalid("sql, parameters and statement are for amend")
	}
	by, err := p.by(a, said("reason"))
	if a == ops.Amend && !isAPI(r) && err != nil {
		return s.askBulk(r, p, a, r.PostForm, failureOf(err))
	}
	if err != nil {
		return nil, err
	}
	f, err := filterOf(said, p)
	if err != nil {
		return nil, err
	}
	sel, err := s.selected(r.Context(), f, said)
	if failed := (*failure)(nil); !isAPI(r) && errors.As(err, &failed) {
		return s.askBulk(r, p, a, r.PostForm, failed)
	}
	if err != nil {
		return nil, err
	}
	if a == ops.Amend {
		return s.amendAll(r, p, sel, said, by)
	}
	did, err := s.store().ActAll(r.Context(), a, sel, by)
	s.events.changed()
	to := s.cfg.BasePath + "/entries" + suffix(filterQuery(r.PostForm))
	return s.afterwards(r, p, done{a, len(did.Changed), did.Gone, did.Left}, err, to)
}

// amendAll amends the counted entries; a form leads to the entries with the new text. A form can
// also ask to try only the first one.
func (s *site) amendAll(r *http.Request, p person, sel *ops.Selection, said field, by ops.By) (any, error) {
	to := ops.Amendment{SQL: said("sql"), Parameters: said("parameters")}
	n, err := statementOf(said)
	if err != nil {
		return nil, err
	}
	to.Statement = n
	dry := !isAPI(r) && said("try") != ""
	did, err := s.store().AmendAll(r.Context(), sel, to, by, dry)
	s.events.changed()
	if f := failureOf(err); err != nil && !isAPI(r) && f.status < 500 {
		return s.askBulk(r, p, ops.Amend, r.PostForm, f)
	}
	if err != nil {
		return nil, err
	}
	if dry {
		l := languageOf(r)
		f := &failure{status: http.StatusOK, text: "Nothing was changed. The first one could not be tried:", detail: did.Untried}
		if did.Trial != nil {
			f = &failure{status: http.StatusOK, text: "Nothing was changed. The first one, as it will be:", detail: trialText(l, did.Trial) + " " + did.Trial.Error}
		}
		return s.askBulk(r, p, ops.Amend, r.PostForm, f)
	}
	d := amendedAll{done{ops.Amend, len(did.Changed), did.Gone, did.Left}, did, nil}
	if did.Trial != nil {
		t := trialOf(did.Trial)
		d.Trial = &t
	}
	if isAPI(r) {
		return d, nil
	}
	return s.afterwards(r, p, d.done, nil, with(s.cfg.BasePath+"/entries", "kind", did.Kind))
}

// selected returns the selection counted for a filter. It fails if the selection differs from the
// request's count.
func (s *site) selected(ctx context.Context, f ops.Filter, said field) (sel *ops.Selection, err error) {
	count, err := number("count", said("count"), ops.MaxBulk)
	if err != nil {
		return nil, err
	}
	if until := said("until"); until != "" {
		sel, err = s.counted.find(until, f)
	} else {
		sel, err = s.store().Select(ctx, f)
	}
	if err != nil {
		return nil, err
	}
	if n := len(sel.IDs); n != count || sel.More {
		return nil, &failure{status: http.StatusConflict, text: "Nothing was changed: the filter does not match what was counted. Look again.", detail: fmt.Sprintf("(%d, %d)", count, n)}
	}
	return sel, nil
}

// control pauses, resumes or limits the data source in the path.
func (s *site) control(r *http.Request, p person) (any, error) {
	said, err := bodyOf(r, "reason", "perSecond")
	if err != nil {
		return nil, err
	}
	a, err := actionOf(r, onSources)
	if err != nil {
		return nil, err
	}
	by, err := p.by(a, said("reason"))
	if err != nil {
		return nil, err
	}
	n := 0
	if a == ops.Limit {
		if n, err = number("perSecond", said("perSecond"), ops.MaxPerSecond); err != nil {
			return nil, err
		}
	}
	err = s.store().Control(r.Context(), a, s.sourceOf(r), n, by)
	s.events.changed()
	return s.afterwards(r, p, done{Action: a, Count: 1}, err, s.cfg.BasePath+"/")
}

// controlURL is the address of an action on a data source. Only a plain name stands in the path,
// which a proxy may decode or clean.
func controlURL(base, name string, a ops.Action) string {
	if plainName.MatchString(name) {
		return base + "/data-sources/" + name + "/" + string(a)
	}
	return with(base+"/data-sources/-/"+string(a), "dataSource", name)
}

var plainName = regexp.MustCompile(`^\w[\w.-]*$`)

// sourceOf returns the data source in the query or the path of [controlURL]. In an escaped name in
// the path, a proxy may have merged consecutive slashes.
func (s *site) sourceOf(r *http.Request) string {
	name := r.PathValue("name")
	if q := r.URL.Query(); name == "-" && q.Has("dataSource") {
		return q.Get("dataSource")
	}
	o, err := s.store().Overview(r.Context(), ops.OverviewOptions{Cap: 1})
	if err != nil || slices.ContainsFunc(o.DataSources, func(d ops.DataSource) bool { return d.Name == name }) {
		return name
	}
	for _, d := range o.DataSources {
		if path.Clean("/"+d.Name) == path.Clean("/"+name) {
			return d.Name
		}
	}
	return name
}

// afterwards answers after an action: a call gets the result, a form a redirect. The redirect names
// the audit record, and the page describes the action from it.
func (s *site) afterwards(r *http.Request, p person, d done, err error, to string) (any, error) {
	if err != nil || isAPI(r) {
		return d, err
	}
	audit, err := s.store().Audit(r.Context(), ops.Page{Limit: 20})
	if err != nil { // it was done all the same
		return redirect(to), nil
	}
	for _, record := range audit.Records {
		if record.Who == p.Name && record.Action == d.Action {
			if d.Action == ops.Retry && strings.HasPrefix(to, s.cfg.BasePath+"/entries") && !strings.HasPrefix(to, s.cfg.BasePath+"/entries/") {
				to = with(to, "follow", record.ID)
			}
			return redirect(with(to, "done", record.ID)), nil
		}
	}
	return redirect(to), nil
}
