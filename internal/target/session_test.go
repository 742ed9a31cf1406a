package target_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

type silent struct{ driver.Connector }

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	if _, ok := ctx.Deadline(); ok {
		return nil, context.DeadlineExceeded
	}
	return nil, errors.New("it has no deadline")
}

type refusing struct{ driver.Connector }

func (refusing) Connect(context.Context) (driver.Conn, error) { return nil, errLogin }

var errLogin = attempt.Certain(errors.New("access denied"), dialect.Refused)

// Without a connection nobody has looked for a receipt: a unit is not parked unasked because a
// password changes just then.
func TestRefusedLoginAnswersNoQuestion(t *testing.T) {
	t.Parallel()
	d := &dialect.Dialect{}
	pool := target.New(delivery.Target{Connector: refusing{}, Dialect: d}, attempt.Receipts{}, nil, 0).Greeted(1)
	err := pool.Ask(t.Context(), func(driver.Conn) error { return nil })
	if !errors.Is(err, errLogin) || !attempt.Failed(d, err, true).Unasked() {
		t.Errorf("Ask: %v, of the class %v", err, d.Class(err))
	}
}

// database/sql opens connections for waiting callers without a context of theirs.
func TestConnectionOpenedForAWaiterIsBounded(t *testing.T) {
	t.Parallel()
	in := target.New(delivery.Target{Connector: silent{}, Dialect: &dialect.Dialect{}}, attempt.Receipts{}, nil, 0)
	if _, err := in.Greeted(1).Connect(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Connect: %v", err)
	}
}
