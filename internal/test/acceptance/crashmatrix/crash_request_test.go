package crashmatrix

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

type stepsKey struct{}

// crashRequest sends a request with its home in A, or in the log's database. The scenario's other
// writes form a staged group delivered before the request commits, or at home a group of its
// transaction. No two runs of the handler give the same response.
func crashRequest(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	s := ctx.Value(stepsKey{}).(*rig.Steps)
	keyed, err := bedhttp.New(bedhttp.Config{Service: "orders", DB: pools[o.requestHome()], Client: func(*http.Request) string { return "t" }, Required: true})
	if err != nil {
		return err
	}
	service := keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := o.handle(r.Context(), pools); err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		w.Header().Set("Location", "/"+entry.NewID())
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("\xff\x00" + entry.NewID()))
	}))
	ask := func() (status int, all string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/pay", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", fmt.Sprintf("%d", o.Row))
		service.ServeHTTP(w, r)
		return w.Code, fmt.Sprintf("%d %q %q %q", w.Code, w.Header()["Location"], w.Header()["Content-Type"], w.Body.Bytes())
	}
	status, got := ask()
	again := ""
	if o.Resend {
		_, again = ask()
	}
	s.Mu.Lock()
	s.Got, s.Again = got, again
	s.Mu.Unlock()
	switch {
	case status == http.StatusCreated:
		return nil
	case strings.Contains(got, "#outcome-unknown"), strings.Contains(got, "#outstanding"):
		return fmt.Errorf("%w: %s", bedsql.ErrPending, got)
	default:
		return fmt.Errorf("the client got %s", got)
	}
}

// identifies makes the identity of the receipts, so that the first COMMIT is the request's.
func (m *matrix) identifies() {
	m.t.Helper()
	dsn := m.a.DB.DSN
	if m.order.atHome() {
		dsn = m.home.DB.DSN
	}
	h, err := bedhttp.Scope(bedhttp.Config{Service: "orders", DB: m.a.Open(dsn), Client: func(*http.Request) string { return "t" }})
	if err != nil {
		m.t.Fatal(err)
	}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequestWithContext(m.t.Context(), http.MethodGet, "/", http.NoBody)); w.Code != http.StatusOK {
		m.t.Fatalf("the scope: %d %s", w.Code, w.Body)
	}
}

func (o *crashOrder) requestHome() string {
	if o.atHome() {
		return "bed home"
	}
	return "A"
}

func (o *crashOrder) handle(ctx context.Context, pools map[string]*sql.DB) error {
	group := func(error) error { return nil }
	elsewhere := ctx
	switch o.By {
	case "request with its own group":
		var err error
		if elsewhere, _, err = bedsql.Begin(ctx, bedsql.WithTx(bedhttp.Tx(ctx))); err != nil {
			return err
		}
	case "request with a staged group":
		staged, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		elsewhere, group = staged, func(err error) error {
			if err != nil {
				return err
			}
			return soft.End(ctx)
		}
	}
	return group(o.each(func(db, table string) error {
		if strings.HasSuffix(o.requestHome(), db) {
			_, err := bedhttp.Tx(ctx).ExecContext(ctx, plusOne(table, o.Row))
			return err
		}
		_, err := pools[db].ExecContext(elsewhere, plusOne(table, o.Row))
		return err
	}))
}
