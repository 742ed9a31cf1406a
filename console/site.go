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
	known   *known
}

func newSite(cfg Config, l source) *site {
	s := &site{cfg: cfg, root: cfg.BasePath, name: l.name, store: l.store, log: cfg.Logger, counted: &counted{}, known: &known{all: map[ops.Filter]*ops.Kinds{}}}
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
func (s *site) entry(in *input, values bool) (*ops.Detail, error) {
	id := in.id()
	switch {
	case in.err != nil:
		return nil, in.err
	case values:
		return s.store().Reveal(in.Context(), id, ops.By{Who: in.Name})
	}
	return s.store().Entry(in.Context(), id)
}

// done describes a finished action, and the omissions of a bulk action.
type done struct {
	Action ops.Action `json:"action"`
	Count  int        `json:"count"`
	Gone   int        `json:"gone"`
	Left   int        `json:"left"`
}

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

// act applies an action to the entry in the path, or tries the entry.
func (s *site) act(in *input) (any, error) {
	in.body("reason")
	a, id := in.action(append(onEntries, ops.Try, ops.Skip)...), in.id()
	by := in.by(a)
	switch {
	case in.err != nil:
		return nil, in.err
	case a == ops.Try:
		return s.try(in, id, by)
	}
	err := s.store().Act(in.Context(), a, id, by)
	to := s.cfg.BasePath + "/entries/" + url.PathEscape(id)
	if a == ops.Discard {
		to = with(to+"/next", "kind", in.URL.Query().Get("kind"))
	}
	return s.afterwards(in, done{Action: a, Count: 1}, err, to)
}

func (s *site) compensate(in *input) (any, error) {
	in.body("reason")
	id, by := in.id(), in.by(ops.Compensate)
	if in.err != nil {
		return nil, in.err
	}
	started, err := s.store().Compensate(in.Context(), id, by)
	if isAPI(in.Request) {
		return started, err
	}
	return s.afterwards(in, done{Action: ops.Compensate, Count: 1}, err, s.cfg.BasePath+"/entries/"+url.PathEscape(id))
}

// amend replaces a statement of the entry in the path.
func (s *site) amend(in *input) (any, error) {
	in.body("sql", "parameters", "statement", "reason")
	id, to := in.id(), in.amendment()
	if in.err != nil {
		return nil, in.err
	}
	var amended *ops.Amended
	by := in.author()
	err := by.Check(ops.Amend)
	if err == nil {
		amended, err = s.store().Amend(in.Context(), id, to, by)
	}
	if isAPI(in.Request) {
		return amended, err
	}
	if f := failureOf(err); err != nil && f.status < 500 && f.status != http.StatusNotFound {
		return s.askAmend(in, f)
	}
	return s.afterwards(in, done{Action: ops.Amend, Count: 1}, err, s.cfg.BasePath+"/entries/"+url.PathEscape(id))
}

// audit is a page of the audit, with the values of amended parameters on request.
func (s *site) audit(in *input, page ops.Page) (*ops.Audit, error) {
	switch {
	case in.err != nil:
		return nil, in.err
	case wantsValues(in.Request):
		return s.store().RevealAudit(in.Context(), page, ops.By{Who: in.Name})
	}
	return s.store().Audit(in.Context(), page)
}

// try answers a call with the trial alone, a form with the entry too.
func (s *site) try(in *input, id string, by ops.By) (any, error) {
	t, err := s.store().Try(in.Context(), id, by)
	if err != nil {
		return nil, err
	}
	if isAPI(in.Request) {
		return trialOf(t), nil
	}
	d, err := s.store().Entry(in.Context(), id)
	if err != nil {
		return nil, err
	}
	v := s.viewOf(in.l, d)
	v.Trial, v.TrialText, v.Live = t, trialText(in.l, t), false
	return v, nil
}

// bulk acts on the entries counted at until; without until, on the current matches. count is their
// expected number.
func (s *site) bulk(in *input) (any, error) {
	in.body("filter", "action", "count", "until", "reason", "sql", "parameters", "statement")
	if in.PathValue("action") == "" {
		in.SetPathValue("action", string(ops.Amend))
	}
	if isAPI(in.Request) {
		if in.said.Get("filter") == "" {
			in.fail(invalid("the body has no filter; an empty one matches everything"))
		}
		in.SetPathValue("action", in.said.Get("action"))
	}
	a := in.action(append(onEntries, ops.Amend)...)
	switch {
	case a == ops.Amend && in.Role < Reveal:
		in.fail(&failure{status: http.StatusForbidden, text: "Your role does not allow this.", detail: Reveal.String()})
	case a != ops.Amend && in.said.Get("sql")+in.said.Get("parameters")+in.said.Get("statement") != "":
		in.fail(invalid("sql, parameters and statement are for amend"))
	}
	if in.err != nil {
		return nil, in.err
	}
	by := in.author()
	if err := by.Check(a); err != nil {
		if a == ops.Amend && !isAPI(in.Request) {
			return s.askBulk(in, a, failureOf(err))
		}
		return nil, err
	}
	sel, err := s.selected(in)
	if failed := (*failure)(nil); !isAPI(in.Request) && errors.As(err, &failed) {
		return s.askBulk(in, a, failed)
	}
	if err != nil {
		return nil, err
	}
	if a == ops.Amend {
		return s.amendAll(in, sel, by)
	}
	did, err := s.store().ActAll(in.Context(), a, sel, by)
	to := s.cfg.BasePath + "/entries" + suffix(filterQuery(in.said))
	return s.afterwards(in, done{a, len(did.Changed), did.Gone, did.Left}, err, to)
}

// amendAll amends the counted entries; a form leads to the entries with the new text. A form can
// also ask to try only the first one.
func (s *site) amendAll(in *input, sel *ops.Selection, by ops.By) (any, error) {
	to := in.amendment()
	if in.err != nil {
		return nil, in.err
	}
	dry := !isAPI(in.Request) && in.said.Get("try") != ""
	did, err := s.store().AmendAll(in.Context(), sel, to, by, dry)
	if f := failureOf(err); err != nil && !isAPI(in.Request) && f.status < 500 {
		return s.askBulk(in, ops.Amend, f)
	}
	if err != nil {
		return nil, err
	}
	if dry {
		f := &failure{status: http.StatusOK, text: "Nothing was changed. The first one could not be tried:", detail: did.Untried}
		if did.Trial != nil {
			f = &failure{status: http.StatusOK, text: "Nothing was changed. The first one, as it will be:", detail: trialText(in.l, did.Trial) + " " + did.Trial.Error}
		}
		return s.askBulk(in, ops.Amend, f)
	}
	d := amendedAll{done{ops.Amend, len(did.Changed), did.Gone, did.Left}, did, nil}
	if did.Trial != nil {
		d.Trial = trialOf(did.Trial)
	}
	if isAPI(in.Request) {
		return d, nil
	}
	return s.afterwards(in, d.done, nil, with(s.cfg.BasePath+"/entries", "kind", did.Kind))
}

// selected returns the selection counted for a filter. It fails if the selection differs from the
// request's count.
func (s *site) selected(in *input) (sel *ops.Selection, err error) {
	f, count := in.filter(), in.number("count", ops.MaxBulk)
	if in.err != nil {
		return nil, in.err
	}
	if until := in.said.Get("until"); until != "" {
		sel, err = s.counted.find(until, f)
	} else {
		sel, err = s.store().Select(in.Context(), f)
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
func (s *site) control(in *input) (any, error) {
	in.body("reason", "perSecond")
	a := in.action(onSources...)
	by := in.by(a)
	n := 0
	if a == ops.Limit {
		n = in.number("perSecond", ops.MaxPerSecond)
	}
	if in.err != nil {
		return nil, in.err
	}
	err := s.store().Control(in.Context(), a, s.sourceOf(in.Request), n, by)
	return s.afterwards(in, done{Action: a, Count: 1}, err, s.cfg.BasePath+"/")
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
func (s *site) afterwards(in *input, d done, err error, to string) (any, error) {
	if err != nil || isAPI(in.Request) {
		return d, err
	}
	audit, err := s.store().Audit(in.Context(), ops.Page{Limit: 20})
	if err != nil { // it was done all the same
		return redirect(to), nil
	}
	for _, record := range audit.Records {
		if record.Who == in.Name && record.Action == d.Action {
			if d.Action == ops.Retry && strings.HasPrefix(to, s.cfg.BasePath+"/entries") && !strings.HasPrefix(to, s.cfg.BasePath+"/entries/") {
				to = with(to, "follow", record.ID)
			}
			return redirect(with(to, "done", record.ID)), nil
		}
	}
	return redirect(to), nil
}
