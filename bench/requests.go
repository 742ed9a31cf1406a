package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/google/uuid"

	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/testdb"
)

// requests drives an HTTP server over the loopback. Each request changes two rows in a local
// transaction: written exactly once by the handler's own transaction, or in the transaction of the
// request's Idempotency-Key, with its response.
func requests(keyed bool) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		target := w.targets[testdb.DriverMySQL][0]
		table, err := w.accounts(ctx, target)
		if err != nil {
			return nil, err
		}
		log, err := w.newLedger(ctx, testdb.DriverMySQL, exactlyOnce, target)
		if err != nil {
			return nil, err
		}
		pool, st, err := w.throughBed(ctx, target, table, log)
		if err != nil {
			return nil, err
		}
		handler, err := service(st, keyed)
		if err != nil {
			return nil, err
		}
		server := httptest.NewServer(handler)
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: w.callers}}
		balances := w.sum(target, table)
		_, kept, err := log.outstanding(ctx)
		if err != nil {
			kept = 0 // the first write makes the table
		}
		s := &setup{
			caller: each(func(ctx context.Context, n int64) error { return request(ctx, client, server.URL, n) }),
			idle:   idle(w.callers, pool),
			check: func(ctx context.Context, done int64) error {
				_, now, err := log.outstanding(ctx)
				if err == nil && now-kept != done {
					err = fmt.Errorf("%d receipts keep the responses to %d requests", now-kept, done)
				}
				return errors.Join(err, balances(ctx, 2*done))
			},
			close: func() error {
				client.CloseIdleConnections()
				server.Close()
				return errors.Join(pool.Close(), log.storage.Close())
			},
		}
		if !keyed {
			s.outstanding, s.receipts = log.outstanding, true
			s.check = func(ctx context.Context, done int64) error {
				return errors.Join(log.check(done, 1), balances(ctx, 2*done))
			}
		}
		return s, nil
	}
}

// service changes the row of the query's n twice.
func service(st statement, keyed bool) (http.Handler, error) {
	pay := func(w http.ResponseWriter, r *http.Request, tx *sql.Tx, n int64, commit func() error) {
		for range 2 {
			if err := oneRow(st.within(r.Context(), tx, n)); err != nil {
				_ = tx.Rollback()
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		if err := commit(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"account":%d,"state":"paid"}`, n)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if keyed {
			pay(w, r, bedhttp.Tx(r.Context()), n, func() error { return nil })
			return
		}
		tx, err := st.pool.BeginTx(r.Context(), nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		pay(w, r, tx, n, tx.Commit)
	})
	if !keyed {
		return handler, nil
	}
	with, err := bedhttp.New(bedhttp.Config{Service: "bench", DB: st.pool, Client: func(*http.Request) string { return "bench" }, Required: true})
	if err != nil {
		return nil, err
	}
	return with(handler), nil
}

// request sends one request and reads its answer. Each has a key of its own; a server without the
// middleware ignores it.
func request(ctx context.Context, client *http.Client, url string, n int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/pay?n=%d", url, n), http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Idempotency-Key", uuid.NewString())
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusCreated {
		err = fmt.Errorf("the request was answered %d %s", answer.StatusCode, body)
	}
	return err
}
