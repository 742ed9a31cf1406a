package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/testdb"
)

// calls calls the service of requests(true) through bed, with the caller's log in MariaDB. An
// unlogged call has no entry, which leaves the cost of the rest.
func calls(unlogged bool) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		target := w.targets[testdb.DriverMySQL][0]
		table, err := w.accounts(ctx, target)
		if err != nil {
			return nil, err
		}
		home, err := w.newLedger(ctx, testdb.DriverMySQL, exactlyOnce, target)
		if err != nil {
			return nil, err
		}
		pool, st, err := w.throughBed(ctx, target, table, home)
		if err != nil {
			return nil, err
		}
		handler, err := service(st, true)
		if err != nil {
			return nil, err
		}
		server := httptest.NewServer(handler)
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: w.callers}}
		log, err := w.newLedger(ctx, testdb.DriverMySQL, exactlyOnce)
		if err != nil {
			return nil, err
		}
		s, err := call.New(client, "payments", server.URL, log.cfg)
		if err != nil {
			return nil, err
		}
		balances := w.sum(target, table)
		to := &setup{
			caller: each(func(ctx context.Context, n int64) error {
				if unlogged {
					ctx = bedsql.Unlogged(ctx)
				}
				return send(ctx, s, n)
			}),
			idle:     idle(w.callers, pool),
			unlogged: unlogged,
			check: func(ctx context.Context, done int64) error {
				if unlogged {
					return balances(ctx, 2*done)
				}
				return errors.Join(log.check(done, 1), balances(ctx, 2*done))
			},
			close: func() error {
				err := s.Close()
				client.CloseIdleConnections()
				server.Close()
				return errors.Join(err, pool.Close(), log.storage.Close(), home.storage.Close())
			},
		}
		if !unlogged {
			to.outstanding = log.outstanding
		}
		return to, nil
	}
}

// send makes one call and reads its answer.
func send(ctx context.Context, s *call.Service, n int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("/pay?n=%d", n), http.NoBody)
	if err != nil {
		return err
	}
	res, err := s.Send(ctx, r)
	if err != nil {
		return err
	}
	_, err = res.Body()
	return err
}
