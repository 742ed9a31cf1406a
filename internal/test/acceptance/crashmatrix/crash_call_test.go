package crashmatrix

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
)

// crashCall makes the writes for A by calls of a service that dies with its caller. They are calls on
// their own, or go with the other writes in a group. In some scenarios B refuses a part of the group,
// the service declines the call, or the job finds the group overdue.
func crashCall(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	cfg, err := configOf(ctx, pools["A"])
	if err != nil {
		return err
	}
	peer, err := o.peer(pools["A"])
	if err != nil {
		return err
	}
	s, err := call.New(peer, "payments", "http://payments", cfg)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var tx *sql.Tx
	var undo context.Context
	end := func(context.Context) error { return nil }
	switch o.By {
	case "staged with a call":
		group, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		ctx, end = group, soft.End
	case "staged with an undoable call":
		opts := []bedsql.TxOption{bedsql.Staged()}
		if o.overdue() {
			opts = append(opts, bedsql.CompensateAfter(crashLease))
		}
		group, soft, err := bedsql.Begin(ctx, opts...)
		if err != nil {
			return err
		}
		ctx, end, undo = group, soft.End, soft.Compensation(group)
	case "with a call":
		if tx, err = pools["home"].BeginTx(ctx, nil); err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		group, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
		if err != nil {
			return err
		}
		ctx, end = group, soft.End
	}
	send := func(ctx context.Context, path string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(fmt.Sprint(o.Row)))
		if err != nil {
			return err
		}
		_, err = s.Send(ctx, r)
		return err
	}
	if err := o.each(func(db, table string) error {
		path := "/" + table
		if o.declines() {
			path = "/declined"
		}
		switch {
		case db == "A" && undo != nil:
			if err := send(ctx, path); err != nil {
				return err
			}
			return send(undo, "/refunds")
		case db == "A":
			return send(ctx, path)
		case db == "home":
			_, err := tx.ExecContext(ctx, plusOne(table, o.Row))
			return err
		}
		if _, err := pools[db].ExecContext(ctx, plusOne(table, o.Row)); err != nil || undo == nil {
			return err
		}
		_, err := pools[db].ExecContext(undo, minusOne(table, o.Row))
		return err
	}); err != nil {
		return err
	}
	if o.turns() && !o.declines() {
		if err := crashRefusal(ctx, pools["B"]); err != nil {
			return err
		}
	}
	if tx != nil {
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return end(ctx)
}

// peer is a client of a service in this process, whose home is db. A refund takes from account, and
// is counted in other.
func (o *crashOrder) peer(db *sql.DB) (*http.Client, error) {
	cfg := bedhttp.Config{Service: "payments", DB: db, Client: func(*http.Request) string { return "caller" }, Required: true}
	if o.undoable() {
		cfg.Undo = func(*http.Request) bool { return true }
	}
	keyed, err := bedhttp.New(cfg)
	if err != nil {
		return nil, err
	}
	scope, err := bedhttp.Scope(cfg)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /idempotency-scope", scope)
	mux.Handle("POST /", keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var row int
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = fmt.Sscan(string(body), &row)
		}
		var texts []string
		switch r.URL.Path {
		case "/declined":
			w.WriteHeader(http.StatusPaymentRequired)
			return
		case "/refunds":
			texts = []string{minusOne("account", row), plusOne("other", row)}
		default:
			texts = []string{plusOne(strings.TrimPrefix(r.URL.Path, "/"), row)}
		}
		for _, text := range texts {
			if err == nil {
				_, err = bedhttp.Tx(r.Context()).ExecContext(r.Context(), text)
			}
		}
		if err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})))
	return &http.Client{Transport: inProcess{mux}}, nil
}

// inProcess sends requests to a handler.
type inProcess struct{ http.Handler }

func (i inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Method != http.MethodHead {
		i.ServeHTTP(w, r.WithContext(context.Background())) // another process knows nothing of the caller's group
	}
	return w.Result(), nil
}

// configOf is the configuration of a bed database.
func configOf(ctx context.Context, db *sql.DB) (cfg bedsql.Config, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return cfg, err
	}
	defer func() { _ = conn.Close() }()
	return cfg, conn.Raw(func(dc any) error { cfg = dc.(*bedsql.Conn).Config(); return nil })
}
