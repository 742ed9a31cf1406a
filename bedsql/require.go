package bedsql

import (
	"context"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
)

// unmet is a write of an open local transaction that did not meet its row requirement. The
// transaction must not be committed.
type unmet struct {
	// err is its RowsError, or nil.
	err error
	// savepoints is the number of current savepoints from before the write.
	savepoints int
}

// require is the requirement in the scope for a write.
func (s scope) require(call *dialect.Call) error {
	if n, _ := s.required.Rows(); n < 0 {
		return fmt.Errorf("bed: the write was not sent: RequireRows and AtLeastRows take a number from 0, not %d", n)
	}
	call.Required = s.required
	return nil
}

// unchecked refuses, in a scope that requires rows, any possible write other than a single DML.
func (s scope) unchecked(st statement, f sqltext.Flavor) error {
	why := ""
	switch {
	case !s.required.Given():
	case st.class.Kind == sqltext.Multi && (st.class.HasDML || st.class.Pins):
		why = "several statements in one text"
	case st.class.Kind == sqltext.Opaque:
		why = "it is not plain DML"
	case st.class.Kind == sqltext.Session && executes(f, st.SQL):
		why = "it executes a statement prepared by SQL"
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("bed: the statement was not sent, the rows that it changes cannot be checked (RequireRows, AtLeastRows): %s; "+
		"send each write by itself, or use a context without the requirement", why)
}

func executes(f sqltext.Flavor, text string) bool {
	for t := range sqltext.Tokens(f, 0, text) {
		return t.Is("EXECUTE")
	}
	return false
}

// require runs s inside the open transaction. before is as for attempt.Send.
func (t *localTx) require(ctx context.Context, s statement) (r attempt.Reply, before bool, err error) {
	if err := s.prepareLate(ctx); err != nil {
		return r, true, err
	}
	c := t.c
	out := attempt.Inside(ctx, c.c.dialect, &c.session, s.Call, s.rows, false)
	if t.unmet.err == nil && isUnmet(out.Err) {
		t.unmet = unmet{out.Err, len(t.savepoints)}
	}
	if out.Rows != nil {
		r.Rows = out.Rows
	}
	r.Result = out.Result
	return r, out.Class == dialect.Unreachable, out.Err
}

func isUnmet(err error) bool { return errors.As(err, new(*RowsError)) }
