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
// their own, or go with the other writes in a group.
func crashCall(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	cfg, err := configOf(ctx, pools["A"])
	if err != nil {
		return err
	}
	peer, err := crashPeer(pools["A"])
	if err != nil {
		return err
	}
	s, err := call.New(peer, "payments", "http://payments", cfg)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var tx *sql.Tx
	end := func(context.Context) error { return nil }
	switch o.By {
	case "staged with a call":
		group, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			return err
		}
		ctx, end = group, soft.End
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
	if err := o.each(func(db, table string) error {
		switch db {
		case "A":
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/"+table, strings.NewReader(fmt.Sprint(o.Row)))
			if err != nil {
				return err
			}
			_, err = s.Send(ctx, r)
			return err
		case "home":
			_, err := tx.ExecContext(ctx, plusOne(table, o.Row))
			return err
		}
		_, err := pools[db].ExecContext(ctx, plusOne(table, o.Row))
		return err
	}); err != nil {
		return err
	}
	if tx != nil {
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return end(ctx)
}

// crashPeer is a client of a service in this process, whose home is db.
func crashPeer(db *sql.DB) (*http.Client, error) {
	keyed, err := bedhttp.New(bedhttp.Config{Service: "payments", DB: db, Client: func(*http.Request) string { return "caller" }, Required: true})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: inProcess{keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var row int
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = fmt.Sscan(string(body), &row)
		}
		if err == nil {
			_, err = bedhttp.Tx(r.Context()).ExecContext(r.Context(), plusOne(strings.TrimPrefix(r.URL.Path, "/"), row))
		}
		if err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))}}, nil
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
