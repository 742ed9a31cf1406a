package console

import (
	"net/http"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/ops"
)

// A site is what pages and calls of a log work with.
type site struct {
	cfg Config
	// root is where the console begins, logs are the names of those that it
	// shows, and name is this site's; empty for all of them.
	root   string
	logs   []string
	name   string
	store  func() Store
	log    logrus.FieldLogger
	events *events
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

// done says what was done.
type done struct {
	Action ops.Action `json:"action"`
	Count  int        `json:"count"`
}

// bulk acts on all that a filter matches.
func (s *site) bulk(r *http.Request, p person, action string, f ops.Filter, count int64, reason string) (done, error) {
	a := ops.Action(action)
	switch a {
	case ops.Retry, ops.Park, ops.Discard:
	default:
		return done{}, badRequest("action is retry, park or discard.", "")
	}
	reason, err := reasonFor(a, reason)
	if err != nil {
		return done{}, err
	}
	if count > ops.MaxBulk {
		return done{}, badRequest("At most 100,000 entries are changed at once: narrow the filter.", "")
	}
	if err := s.store().ActAll(r.Context(), a, f, int(count), p.by(reason)); err != nil {
		return done{}, err
	}
	s.events.changed()
	return done{a, int(count)}, nil
}

// control pauses, resumes or limits a data source.
func (s *site) control(r *http.Request, p person, action, reason string, perSecond int64) error {
	reason, err := reasonFor(ops.Action(action), reason)
	if err != nil {
		return err
	}
	name, err := sourceOf(r)
	if err != nil {
		return err
	}
	switch ops.Action(action) {
	case ops.Pause:
		err = s.store().Pause(r.Context(), name, p.by(reason))
	case ops.Resume:
		err = s.store().Resume(r.Context(), name, p.by(reason))
	case ops.Limit:
		if perSecond < 0 || perSecond > maxPerSecond {
			return badRequest("perSecond is a number from 0, which lifts the limit, to 1000000.", "")
		}
		err = s.store().Limit(r.Context(), name, int(perSecond), p.by(reason))
	default:
		return noSuchAction()
	}
	if err == nil {
		s.events.changed()
	}
	return err
}
