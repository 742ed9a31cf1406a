package attempt

import (
	"time"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Event makes the event of an attempt on u. Statements whose parameters cannot be
// read have none in it.
func (o Outcome) Event(t listener.EventType, by listener.Origin, u *txlog.Unit) listener.Event {
	ev := listener.Event{
		Type: t, Origin: by, Time: time.Now(),
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, TraceParent: u.TraceParent,
		Statements: make([]listener.Statement, len(u.Statements)),
		Err:        o.Err, Assumed: o.Assumed, Found: o.Found,
	}
	if o.Err != nil {
		ev.Class = o.Class
	}
	for i, s := range u.Statements {
		args, _ := s.Args()
		ev.Statements[i] = listener.Statement{SQL: s.SQL, Parameters: args}
	}
	return ev
}
