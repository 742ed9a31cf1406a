package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// maxSessions is how many different sessions, as entries name them, are tried.
const maxSessions = 20

// sessions makes a session for each kind that entries name, as the job would: what the
// application's account, its DSN or a pooler made of it counts, not what either DSN
// says.
func sessions(ctx context.Context, x *examination, units []*txlog.Unit, targets map[string]Database) {
	type kind struct{ dataSource, settings, session, account string }
	tried := map[kind]bool{}
	for _, u := range units {
		t, ok := targets[u.DataSource]
		k := kind{u.DataSource, u.Settings, u.Session, u.Account}
		if !ok || t.Problem != "" || tried[k] || len(tried) == maxSessions {
			continue
		}
		tried[k] = true
		if err := t.Target.SameAccount(u); err != nil {
			said, remedy, _ := strings.Cut(strings.TrimPrefix(err.Error(), "not delivered: "), "; ")
			x.find(nameOf(t), "session", "entries are not delivered: "+said, remedy)
			continue
		}
		if u.Settings == t.Target.Settings && u.Session == "" {
			continue
		}
		target, err := t.Target.In(u.Settings, u.Session)
		if err != nil {
			x.find(nameOf(t), "settings", fmt.Sprintf("entries were written with the settings %q, the job's DSN has %q: they are not delivered, since values or places could be others", u.Settings, t.Target.Settings),
				"give the job's DSN the parameters of the application's")
			continue
		}
		conn, _, err := target.Dial(ctx)
		if err == nil {
			_ = conn.Close()
		}
		var differs *delivery.SessionError
		if errors.As(err, &differs) {
			said, remedy, _ := strings.Cut(strings.TrimPrefix(differs.Error(), "not delivered: "), "; give ")
			x.find(nameOf(t), "session", "entries are not delivered: "+said, "give "+remedy)
		}
	}
}
