package doctor

import (
	"context"
	"errors"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

// maxSessions is how many different sessions, as entries name them, are tried.
const maxSessions = 20

// sessions tries each kind of session that entries need, in the same way as the job. The real
// sessions of the application matter, with the effects of its account, its DSN and any pooler,
// rather than the text of a DSN.
func sessions(ctx context.Context, x *examination, units []*entry.Unit, targets map[string]Database) {
	type kind struct{ dataSource, settings, session, account, place string }
	tried := map[kind]bool{}
	for _, u := range delivered(units) {
		t, ok := targets[u.DataSource]
		k := kind{u.DataSource, u.Settings, u.Session, u.Account, u.Place}
		if !ok || tried[k] || len(tried) == maxSessions {
			continue
		}
		tried[k] = true
		if why := elsewhere(ctx, &t.Target, u); why != nil {
			x.find("data source "+t.Name, why.Kind, "entries are not delivered: "+why.Why, why.Remedy)
		}
	}
}

// delivered returns units with the parts of compensations in place of those.
func delivered(units []*entry.Unit) (all []*entry.Unit) {
	for _, u := range units {
		if u.Undo == nil {
			all = append(all, u)
			continue
		}
		for n := range u.Undo.Parts {
			all = append(all, u.Part(n))
		}
	}
	return all
}

// elsewhere returns the job's reason for not delivering u; nil without one, or if the target cannot be
// asked.
func elsewhere(ctx context.Context, t *delivery.Target, u *entry.Unit) (why *target.ElsewhereError) {
	err := target.SameAccount(t, u)
	if err == nil && (u.Settings != t.Settings || u.Session != "" || u.Place != "") {
		err = opens(ctx, *t, u)
	}
	errors.As(err, &why)
	return why
}

// opens returns an error if t has no session for u.
func opens(ctx context.Context, t delivery.Target, u *entry.Unit) error {
	t, err := target.In(t, u)
	if err != nil {
		return err
	}
	conn, _, err := target.Dial(ctx, &t)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return target.SamePlace(ctx, &t, conn, u)
}
