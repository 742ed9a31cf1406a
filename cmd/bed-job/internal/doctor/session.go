package doctor

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/txlog"
)

// maxSessions is how many different sessions, as entries name them, are tried.
const maxSessions = 20

// sessions tries each kind of session that entries need, in the same way as the job. The real
// sessions of the application matter, with the effects of its account, its DSN and any pooler,
// rather than the text of a DSN.
func sessions(ctx context.Context, x *examination, units []*txlog.Unit, targets map[string]Database) {
	type kind struct{ dataSource, settings, session, account, place string }
	tried := map[kind]bool{}
	for _, u := range units {
		t, ok := targets[u.DataSource]
		k := kind{u.DataSource, u.Settings, u.Session, u.Account, u.Place}
		if !ok || tried[k] || len(tried) == maxSessions {
			continue
		}
		tried[k] = true
		err := t.Target.SameAccount(u)
		if err == nil && (u.Settings != t.Target.Settings || u.Session != "" || u.Place != "") {
			target, other := t.Target.In(u.Settings, u.Session)
			if other != nil {
				x.find("data source "+t.Name, "settings", fmt.Sprintf("entries were written with the settings %q, the job's DSN has %q: they are not delivered, since values or places could be others", u.Settings, t.Target.Settings),
					"give the job's DSN the parameters of the application's")
				continue
			}
			var conn driver.Conn
			if conn, _, err = target.Dial(ctx); err == nil {
				if place, perr := attempt.ReceiptPlace(ctx, target.Dialect, conn, attempt.Receipts{Schema: target.ReceiptSchema}); perr == nil && u.Place != "" && place != u.Place {
					x.find("data source "+t.Name, "place", fmt.Sprintf("entries say that their receipts are in %s, but this DSN leads to %s: one name stands for two databases, and what one holds is delivered to the other", u.Place, cmp.Or(place, "none")),
						"give each database a name of its own (bedDataSource), and the job's DSN the database that the application writes to")
				}
				_ = conn.Close()
			}
		}
		if why, refused := strings.CutPrefix(fmt.Sprint(err), "not delivered: "); refused {
			said, remedy, _ := strings.Cut(why, "; ")
			x.find("data source "+t.Name, "session", "entries are not delivered: "+said, remedy)
		}
	}
}
