package target

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
)

// The wrapper, the job, doctor and the console show these texts.
func TestErrorsNameTheReasonAndTheRemedy(t *testing.T) {
	t.Parallel()
	to := delivery.Target{DataSource: "orders", Settings: "a=1", Account: "job", Dialect: &dialect.Dialect{}}
	_, settings := In(to, &entry.Unit{Settings: "a=2"})
	for want, err := range map[string]error{
		"a session that has app.token=(not shown), but this session has sql_mode=: denied; give this account": OtherSession("x=1;app.token=secret", "x=1;sql_mode=", errors.New("denied")),
		`the settings "a=2", which the DSN of data source orders cannot have (it has "a=1")`:                  settings,
		`the account "app" wrote the entry; the session of "job" may lead elsewhere; deliver it once`:         SameAccount(&to, &entry.Unit{Account: "app"}),
		"in the table bed_receipt in shop.a, but this DSN and account lead to none; give each database":       OtherPlace("shop.a", ""),
		"bedReceiptSchema is not set, but data source orders has kept its receipts in the schema bed":         otherSchema("orders", "", "the schema bed"),
		"could not record in the log what its session is: EOF":                                                unwritten("what its session is", io.EOF),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), NotSent) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want in it %q", err, want)
		}
	}
	if err := SameAccount(&to, &entry.Unit{Account: "app", Session: "x=1"}); err != nil {
		t.Errorf("with a session: %v", err)
	}
}

// Doctor and the console find a service that has other keys than an entry's.
func TestScopeOfAServiceIsCompared(t *testing.T) {
	t.Parallel()
	peer := &dialect.Peer{Scope: func(context.Context, driver.Conn) (string, error) { return "a", nil }}
	to := delivery.Target{Dialect: &dialect.Dialect{Peer: peer}}
	if err := SamePlace(t.Context(), &to, nil, &entry.Unit{Place: "a"}); err != nil {
		t.Errorf("in its scope: %v", err)
	}
	var elsewhere *ElsewhereError
	if err := SamePlace(t.Context(), &to, nil, &entry.Unit{Place: "b"}); !errors.As(err, &elsewhere) || elsewhere.Kind != "scope" {
		t.Errorf("in another one: %v", err)
	}
}
