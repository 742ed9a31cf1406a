package requests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A MySQL procedure may end its caller's transaction, and with it the key's receipt. The handler's
// later writes would be committed alone, each time.
func TestHTTPProcedureThatEndsTheTransactionDoublesNothing(t *testing.T) {
	t.Parallel()
	const calls = "CALL ends()"
	for name, c := range map[string]struct {
		procedure        string
		status           int  // the handler's
		first, second    int  // what the client gets
		balance, writing int  // how it ends, and how often the handler's second write was refused
		replayed         bool // the second answer
	}{
		"rolls back and fails":             {"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; UPDATE account SET balance = balance + 10; SIGNAL SQLSTATE '45000'; END", 409, 409, 409, 0, 1, true},
		"rolls back":                       {"ROLLBACK", 409, 409, 409, 0, 1, true},
		"rolls back, the handler succeeds": {"ROLLBACK", 201, 503, 503, 0, 2, false},
		"commits":                          {"BEGIN UPDATE account SET balance = balance + 10; COMMIT; END", 201, 503, 500, 11, 1, false},
		"commits and begins":               {"BEGIN COMMIT; START TRANSACTION; END", 409, 500, 500, 1, 1, false},
		"does neither":                     {"UPDATE account SET balance = balance + 10", 201, 201, 201, 12, 0, true},
		"fails alone":                      {"SIGNAL SQLSTATE '45000'", 409, 409, 409, 2, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, testdb.MySQL(t))
			r.Account(0)
			r.Exec("CREATE PROCEDURE ends() " + c.procedure)
			lost := 0
			s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
				tx := bedhttp.Tx(r.Context())
				_, err := tx.ExecContext(r.Context(), rig.AddOne)
				if _, callErr := tx.ExecContext(r.Context(), calls); err != nil || callErr != nil && !strings.Contains(callErr.Error(), "45000") {
					t.Error(err, callErr)
				}
				switch _, err := tx.ExecContext(r.Context(), rig.AddOne); {
				case errors.Is(err, bedsql.ErrTransactionLost):
					lost++
				case err != nil:
					t.Error(err)
				}
				w.WriteHeader(c.status)
			})
			s.Wants(s.Asks("k", "{}"), c.first, false)
			s.Wants(s.Asks("k", "{}"), c.second, c.replayed)
			if b := r.Balance(1); b != c.balance || lost != c.writing {
				t.Errorf("the balance is %d, want %d; %d writes were refused, want %d", b, c.balance, lost, c.writing)
			}
		})
	}
}

// served is a service with a handler that pays, calls a procedure and then goes on.
func served(t *testing.T, procedure string, then http.HandlerFunc) *rig.Service {
	t.Helper()
	r := rig.New(t, testdb.MySQL(t))
	r.Account(0)
	r.Exec("CREATE PROCEDURE ends() " + procedure)
	return rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
		if !rig.Pays(w, r) {
			return
		}
		if rows, err := bedhttp.Tx(r.Context()).QueryContext(r.Context(), "CALL ends()"); err != nil || rows.Close() != nil {
			t.Error(err)
		}
		then(w, r)
	})
}

// No statement follows a final CALL, so none could be refused.
func TestHTTPProcedureThatRollsBackLastIsNoSuccess(t *testing.T) {
	t.Parallel()
	s := served(t, "ROLLBACK", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) })
	s.Wants(s.Asks("k", "{}"), 503, false)
	s.WantsRuns(1, 0)
}

func TestHTTPProcedureThatCommitsIsNotSaidToHaveChangedNothing(t *testing.T) {
	t.Parallel()
	s := served(t, "COMMIT", paysAnd(201, ""))
	for i, says := range []string{"It is not known whether it is applied", "The request was applied"} {
		a := s.Asks("k", "{}")
		if s.Wants(a, []int{503, 500}[i], false); !strings.Contains(string(a.Body), says) {
			t.Errorf("%v, want %q", a, says)
		}
	}
	s.WantsRuns(1, 1)
}

// A transaction begun again under the same context belongs to the same request, also after the
// client has repeated it.
func TestTransactionRolledBackByAProcedureCanBeBegunAgain(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Account(0)
	r.Exec("CREATE PROCEDURE ends() ROLLBACK")
	for sent := range 2 { // the client sends it twice
		ctx, key := bedsql.WithIdempotencyKey(t.Context(), "k")
		key.SetFingerprint("pay")
		for _, procedure := range []string{"CALL ends()", ""} {
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if procedure != "" && sent == 0 {
				if _, err := tx.ExecContext(ctx, procedure); err != nil {
					t.Fatal(err)
				}
				if _, err := tx.ExecContext(ctx, rig.AddOne); bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown || !errors.Is(err, bedsql.ErrTransactionLost) {
					t.Errorf("after the procedure: %v", err)
				}
				_ = tx.Rollback()
				continue
			}
			if _, err := tx.ExecContext(ctx, rig.AddOne); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if b := r.Balance(1); b != 1 {
		t.Errorf("the balance is %d", b)
	}
}

func TestHTTPTextThatWouldEndTheTransactionIsRefused(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, home *rig.Rig) {
		s := rig.NewService(t, home, func(w http.ResponseWriter, r *http.Request) {
			for _, text := range []string{"COMMIT; BEGIN", "SELECT 1; ROLLBACK", "COMMIT", "ROLLBACK"} {
				if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), text); !errors.Is(err, bedsql.ErrKeyUnusable) {
					t.Errorf("%s: %v", text, err)
				}
			}
			if home.DB.Driver == testdb.DriverPostgres { // the others take no such texts, or one at a time
				if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), "SET LOCAL lock_timeout = '20s'; SET LOCAL statement_timeout = '50s'"); err != nil {
					t.Error(err)
				}
			}
			if rig.Pays(w, r) {
				w.WriteHeader(500)
			}
		})
		s.Wants(s.Asks("k", "{}"), 500, false)
		s.WantsRuns(1, 0)
	})
}

// "Nothing of it is applied", says Error.
func TestHTTPErrorRollsBackWhatIsRefused(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if !rig.Pays(w, r) {
				return
			}
			_, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), "INSERT INTO account VALUES (1, 1)")
			bedhttp.Error(w, r, err)
		})
		a := s.Asks("k", "{}")
		if s.Wants(a, 409, false); !strings.Contains(string(a.Body), "Nothing of it is applied") {
			t.Error(a)
		}
		s.Wants(s.Asks("k", "{}"), 409, true)
		s.WantsRuns(1, 0)
	})
}

// A handler that gives up half-way has applied no write, regardless of its error.
func TestHTTPErrorInOpenTransactionAppliesNothing(t *testing.T) {
	t.Parallel()
	own := errors.New("out of stock")
	cases := map[string]struct {
		fails  func(r *rig.Rig, tx *sql.Tx) error
		status int
	}{
		"no row": {func(_ *rig.Rig, tx *sql.Tx) error {
			return tx.QueryRow("SELECT balance FROM account WHERE id = 7").Scan(new(int))
		}, 500},
		"no row, wrapped": {func(_ *rig.Rig, tx *sql.Tx) error {
			return fmt.Errorf("the account: %w", tx.QueryRow("SELECT balance FROM account WHERE id = 7").Scan(new(int)))
		}, 500},
		"scan": {func(_ *rig.Rig, tx *sql.Tx) error {
			return fmt.Errorf("the account: %w", tx.QueryRow("SELECT 'x' FROM account").Scan(new(int)))
		}, 500},
		"columns": {func(_ *rig.Rig, tx *sql.Tx) error {
			return tx.QueryRow("SELECT id, balance FROM account").Scan(new(int))
		}, 500},
		"nothing inserted": {func(r *rig.Rig, tx *sql.Tx) error {
			insert := testdb.By[string]{
				MySQL:    "INSERT IGNORE INTO account VALUES (1, 1) RETURNING id",
				Postgres: "INSERT INTO account VALUES (1, 1) ON CONFLICT DO NOTHING RETURNING id",
				SQLite:   "INSERT INTO account VALUES (1, 1) ON CONFLICT DO NOTHING RETURNING id",
			}.For(r.DB.Driver)
			return tx.QueryRow(insert).Scan(new(int))
		}, 500},
		"the handler's own": {func(*rig.Rig, *sql.Tx) error { return own }, 500},
		"the rows lost":     {func(*rig.Rig, *sql.Tx) error { return fmt.Errorf("elsewhere: %w", bedsql.ErrRowsUnknown) }, 500},
		"not known":         {func(*rig.Rig, *sql.Tx) error { return fmt.Errorf("elsewhere: %w", bedsql.ErrUnknownOutcome) }, 503},
		"the log down":      {func(*rig.Rig, *sql.Tx) error { return fmt.Errorf("elsewhere: %w", bedsql.ErrNotLogged) }, 503},
		"killed": {func(r *rig.Rig, tx *sql.Tx) error {
			kill := testdb.By[string]{MySQL: "KILL CONNECTION_ID()", Postgres: "SELECT pg_terminate_backend(pg_backend_pid())", SQLite: ""}.For(r.DB.Driver)
			if kill == "" {
				return context.Canceled
			}
			_, err := tx.Exec(kill)
			if _, next := tx.Exec(rig.AddOne); err == nil {
				err = next
			}
			return err
		}, 503},
	}
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				s := rig.NewService(t, r, func(w http.ResponseWriter, req *http.Request) {
					if rig.Pays(w, req) {
						bedhttp.Error(w, req, c.fails(r, bedhttp.Tx(req.Context())))
					}
				})
				a := s.Asks("k", "{}")
				if s.Wants(a, c.status, false); strings.Contains(string(a.Body), "It is applied") || (a.Header.Get("Retry-After") != "") != (c.status == 503) {
					t.Error(a, a.Header)
				}
				s.Wants(s.Asks("k", "{}"), c.status, false)
				s.WantsRuns(2, 0)
			})
		}
	})
}

// A migration that is late is no refusal of the request.
func TestHTTPSchemaMistakeIsTheServices(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, home *rig.Rig) {
		var text string
		s := rig.NewService(t, home, func(w http.ResponseWriter, r *http.Request) {
			if !rig.Pays(w, r) {
				return
			}
			if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), text); err != nil {
				bedhttp.Error(w, r, err)
			}
		})
		for i, mistake := range []string{"UPDATE account SET absent = 1", "INSERT INTO absent VALUES (1)", "UPDATE account SET SET balance = 1"} {
			text = mistake
			for range 2 {
				a := s.Asks(fmt.Sprint(i), "{}")
				if s.Wants(a, 500, false); a.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%v", a.Header)
				}
			}
			text = "UPDATE account SET balance = balance" // the migration has come
			s.Wants(s.Asks(fmt.Sprint(i), "{}"), 200, false)
		}
		s.WantsRuns(9, 3)
	})
}

// Only the reader of a later row sees its error.
func TestHTTPRefusalAfterAnErrorAmongRowsIsKept(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.Postgres(t))
	r.Account(0)
	s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
		rows, err := bedhttp.Tx(r.Context()).QueryContext(r.Context(), "SELECT 6 / (3 - g) FROM generate_series(1, 3) AS g")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
		}
		if rows.Err() == nil {
			t.Error("no error among the rows")
		}
		_ = rows.Close()
		w.WriteHeader(422)
	})
	s.Wants(s.Asks("k", "{}"), 422, false)
	s.Wants(s.Asks("k", "{}"), 422, true)
	wantsRunsOnce(s)
}

// blocked is a client that reads no response.
type blocked struct {
	http.ResponseWriter
	writes, released chan struct{}
}

func (b blocked) Write(p []byte) (int, error) {
	close(b.writes)
	<-b.released
	return b.ResponseWriter.Write(p)
}

func TestHTTPClientThatDoesNotReadAFailureHoldsNoKey(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	r.Account(0)
	failing := true
	s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
		if rig.Pays(w, r) && failing {
			w.WriteHeader(500)
			_, _ = w.Write([]byte("a long story"))
		}
	}, func(c *bedhttp.Config) { c.Wait = time.Minute })
	b := blocked{&recorded{header: http.Header{}}, make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "/orders?n=1", strings.NewReader("{}"))
		req.Header = http.Header{"Tenant": {"t1"}, "Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
		s.Handler.ServeHTTP(b, req)
	}()
	rig.WaitFor(t, "the failure's being sent", b.writes)
	failing = false
	s.Wants(s.Asks("k", "{}"), 200, false)
	s.WantsRuns(2, 1)
	close(b.released)
	<-done
}
