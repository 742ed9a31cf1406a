package requests

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// everyByte is a body that no text encoding keeps.
var everyByte = func() (b []byte) {
	for i := range 256 {
		b = append(b, byte(i))
	}
	return bytes.Repeat(b, 5)
}()

func TestHTTPResendGetsTheStoredResponseByteForByte(t *testing.T) {
	t.Parallel()
	responses := map[string]http.HandlerFunc{
		"binary": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Location", "/orders/\xe4\xff")
			h.Set("X-Other", "first only")
			h.Set("Set-Cookie", "session=secret")
			h.Set("Authorization", "secret")
			w.WriteHeader(http.StatusCreated)
			h.Set("Location", "too late")
			_, _ = w.Write(everyByte)
		},
		"guessed type": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<html>")
		},
		"compressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = w.Write([]byte{1, 2, 3})
		},
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"not modified": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusAccepted)
			w.WriteHeader(http.StatusOK) // too late
		},
		"see other": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusSeeOther) },
		"not found": http.NotFound,
		"trailers and a wrong length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Sum")
			w.Header().Set("Content-Length", "99")
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "short")
			w.Header().Set("Sum", "1")
		},
		"HEAD": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "1234567") },
	}
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		var h http.HandlerFunc
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if rig.Pays(w, r) {
				h(w, r)
			}
		}, func(c *bedhttp.Config) { c.Methods = []string{"POST", "HEAD"} })
		paid := 0
		for name, response := range responses {
			h = response
			method := func(r *http.Request) {
				if name == "HEAD" {
					r.Method = "HEAD"
				}
			}
			first := s.Asks(name, "{}", method)
			paid++
			for range 2 {
				again := s.Asks(name, "{}", method)
				if first.Err != nil || again.Status != first.Status || !bytes.Equal(again.Body, first.Body) || first.Replayed() || !again.Replayed() {
					t.Errorf("%s: first %v, again %v", name, first, again)
				}
				for _, kept := range []string{"Content-Type", "Content-Length", "Location", "Content-Encoding", "Trailer", "Transfer-Encoding"} {
					if a, b := fmt.Sprintf("%q", first.Header[kept]), fmt.Sprintf("%q", again.Header[kept]); a != b {
						t.Errorf("%s: %s was %s and is %s", name, kept, a, b)
					}
				}
				if again.Header.Get("Set-Cookie")+again.Header.Get("Authorization")+again.Header.Get("X-Other") != "" {
					t.Errorf("%s: a header was kept that must not be: %v", name, again.Header)
				}
			}
			if name == "binary" && (first.Status != http.StatusCreated || !bytes.Equal(first.Body, everyByte) || first.Header.Get("Set-Cookie") == "" || first.Header.Get("Location") != "/orders/\xe4\xff") {
				t.Errorf("the first httpAnswer was changed: %v %q", first, first.Header)
			}
			if name == "HEAD" && first.Header.Get("Content-Length") != "7" {
				t.Errorf("HEAD: %q", first.Header)
			}
		}
		s.WantsRuns(int64(paid), paid)
		r.WantNoLog()
	})
}

// The largest response that Config.MaxResponse may allow fits the receipt's column.
func TestHTTPLargestResponseComesBack(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		for _, limit := range []int{0, 8 << 20} {
			size := max(limit, 1<<20) - 100 // the headers count
			s := rig.NewService(t, r, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(bytes.Repeat([]byte{0xff, 0x00, '<', '"'}, size/4))
			}, func(c *bedhttp.Config) { c.MaxResponse, c.Wait = limit, time.Minute })
			first, runs := s.Asks(fmt.Sprint(limit), "{}"), int64(1)
			for ; first.Status == http.StatusServiceUnavailable && runs < 10; runs++ { // a busy server's COMMIT took too long
				first = s.Asks(fmt.Sprint(limit), "{}")
			}
			if first.Replayed() {
				runs--
			}
			s.Wants(first, 200, first.Replayed())
			again := s.Asks(fmt.Sprint(limit), "{}")
			if s.Wants(again, 200, true); len(first.Body) != size || !bytes.Equal(first.Body, again.Body) {
				t.Errorf("%d bytes, and then %d, want %d", len(first.Body), len(again.Body), size)
			}
			if n := s.Runs.Load(); n != runs {
				t.Errorf("the handler has run %d times, want %d", n, runs)
			}
		}
	})
}

func TestHTTPRequestThatFailsFreesItsKey(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(w http.ResponseWriter){
		"500":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"503":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"429":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		"panic": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"too large": func(w http.ResponseWriter) {
			for range 3 {
				if _, err := w.Write(make([]byte, 500<<10)); err != nil && !errors.Is(err, bedhttp.ErrTooLarge) {
					panic(err)
				}
			}
		},
		"switches protocols": func(w http.ResponseWriter) { w.WriteHeader(http.StatusSwitchingProtocols) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachHome(t, func(t *testing.T, r *rig.Rig) {
				failing := true
				s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if rig.Pays(w, r); failing {
						fails(w)
					}
				})
				if a := s.Asks("k", "{}"); name == "panic" && a.Err == nil || name != "panic" && (a.Status < 500 && a.Status != 429) {
					t.Errorf("the first httpAnswer: %v", a)
				}
				s.WantsRuns(1, 0)
				failing = false
				s.Wants(s.Asks("k", "{}"), 200, false)
				s.Wants(s.Asks("k", "{}"), 200, true)
				s.WantsRuns(2, 1)
			})
		})
	}
}

func TestHTTPTwoTenantsWithOneKeyNeverMeet(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			rig.Pays(w, r)
			_, _ = io.WriteString(w, r.Header.Get("Tenant"))
		})
		// The names and keys of some would be the same if they were written one after the other.
		pairs := [][2]string{{"t", "1k"}, {"t1", "k"}, {"t1k", "x"}, {"T1", "k"}, {"t1 ", "K"}, {"ab", "c"}, {"a", "bc"}}
		for _, replayed := range []bool{false, true} {
			for _, p := range pairs {
				a := s.Asks(p[1], "{}", func(r *http.Request) { r.Header.Set("Tenant", p[0]) })
				if s.Wants(a, 200, replayed); string(a.Body) != strings.TrimSpace(p[0]) {
					t.Errorf("%q was answered as %q", p, a.Body)
				}
			}
		}
		s.WantsRuns(int64(len(pairs)), len(pairs))
		s.Wants(s.Asks("k", "{}", func(r *http.Request) { r.Header.Del("Tenant") }), http.StatusForbidden, false)
	})
}

func TestHTTPTwoServicesOnOneDatabaseNeverMeet(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		named := func(name string) *rig.Service {
			return rig.NewService(t, r, paysAnd(201, name), func(c *bedhttp.Config) { c.Service = name })
		}
		payments, shipments, process := named("payments"), named("shipments"), named("payments")
		for _, c := range []struct {
			s        *rig.Service
			body     string
			replayed bool
		}{{payments, "payments", false}, {shipments, "shipments", false}, {payments, "payments", true}, {shipments, "shipments", true}, {process, "payments", true}} {
			a := c.s.Asks("k", "{}")
			if c.s.Wants(a, 201, c.replayed); string(a.Body) != c.body {
				t.Errorf("%s was answered %q", c.body, a.Body)
			}
		}
		payments.WantsRuns(1, 2)
	})
}

func TestHTTPKeyWithAnotherRequestIsUnprocessable(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		s := rig.NewService(t, r, paysAnd(201, "done"))
		s.Wants(s.Asks(`"k"`, "{}"), 201, false)
		for name, other := range map[string]rig.HttpAnswer{
			"body":         s.Asks("k", "{} "),
			"method":       s.Asks("k", "{}", func(r *http.Request) { r.Method = "PATCH" }),
			"path":         s.Asks("k", "{}", func(r *http.Request) { r.URL.Path = "/order" }),
			"query":        s.Asks("k", "{}", func(r *http.Request) { r.URL.RawQuery = "n=2" }),
			"content type": s.Asks("k", "{}", func(r *http.Request) { r.Header.Set("Content-Type", "text/json") }),
		} {
			if s.Wants(other, http.StatusUnprocessableEntity, false); other.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(string(other.Body), "168 hours") {
				t.Errorf("%s: %v", name, other)
			}
		}
		s.Wants(s.Asks("k", "{}", func(r *http.Request) { r.Header.Set("Accept", "text/plain") }), 201, true)
		s.WantsRuns(1, 1)
	})
}

func TestHTTPThousandDuplicatesAtOnce(t *testing.T) {
	t.Parallel()
	const n = 1000
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		var arrived atomic.Int64
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			for begun := time.Now(); arrived.Load() < n && time.Since(begun) < rig.Patience; {
				time.Sleep(time.Millisecond)
			}
			paysAnd(201, "done")(w, r)
		}, func(c *bedhttp.Config) {
			c.DB.SetMaxOpenConns(2) // one of which waits for nobody
			c.Wait = time.Minute
			c.Client = func(*http.Request) string {
				arrived.Add(1)
				return "t"
			}
		})
		var all sync.WaitGroup
		var first atomic.Int64
		for range n {
			all.Go(func() {
				w := httptest.NewRecorder()
				req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/orders", strings.NewReader("{}"))
				req.Header.Set("Idempotency-Key", "k")
				if s.Handler.ServeHTTP(w, req); w.Code != 201 || w.Body.String() != "done" {
					t.Errorf("%d %q", w.Code, w.Body)
				}
				if w.Header().Get("Idempotent-Replayed") == "" {
					first.Add(1)
				}
			})
		}
		all.Wait()
		if s.WantsRuns(1, 1); first.Load() != 1 || arrived.Load() != n {
			t.Errorf("of %d answers %d were not replays", arrived.Load(), first.Load())
		}
	})
}

func TestHTTPDuplicatesWaitTogetherAndDoNotDrainThePool(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		const n = 20
		held, free := make(chan struct{}), make(chan struct{})
		var cfg bedhttp.Config
		var arrived atomic.Int64
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			held <- struct{}{}
			<-free
			rig.Pays(w, r)
		}, func(c *bedhttp.Config) {
			c.Wait = time.Minute
			c.Client = func(*http.Request) string {
				arrived.Add(1)
				return "t"
			}
			cfg = *c
		})
		answers := make(chan rig.HttpAnswer)
		for range n {
			go func() { answers <- s.Asks("k", "{}") }()
		}
		rig.WaitFor(t, "the handler", held)
		rig.Eventually(t, "all have arrived", func() bool { return arrived.Load() == n })
		if open := cfg.DB.Stats().InUse; open != 1 {
			t.Errorf("%d connections are in use for one key", open)
		}
		close(free)
		for range n {
			if a := <-answers; a.Status != 200 {
				t.Errorf("%v", a)
			}
		}
		s.WantsRuns(1, 1)
	})
}

func TestHTTPDuplicateOfARequestThatRunsIsConflict(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		makesReceipts(r)
		held, free := make(chan struct{}), make(chan struct{})
		h := func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 0 {
				held <- struct{}{}
				<-free
			}
			paysAnd(201, "done")(w, r)
		}
		var home *sql.DB
		one := rig.NewService(t, r, h, func(c *bedhttp.Config) { home = c.DB })
		short := func(c *bedhttp.Config) { c.Wait = 5 * time.Second }
		same, other := rig.NewService(t, r, h, short, func(c *bedhttp.Config) { c.DB = home }), rig.NewService(t, r, h, short)
		other.Wants(other.Asks("first", ""), 201, false) // so that it has a connection
		first := make(chan rig.HttpAnswer)
		go func() { first <- one.Asks("k", "{}") }()
		rig.WaitFor(t, "the handler", held)
		for where, s := range map[string]*rig.Service{"this process": same, "another process": other} {
			a := s.Asks("k", "{}")
			if s.Wants(a, http.StatusConflict, false); a.Header.Get("Retry-After") == "" || a.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("in %s: %v %v", where, a, a.Header)
			}
		}
		close(free)
		one.Wants(<-first, 201, false)
		other.Wants(other.Asks("k", "{}"), 201, true)
		one.WantsRuns(1, 2)
	})
}

func TestHTTPThreeInsertersOfOneKeyMeetNoDeadlock(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		for range 5 {
			held, free := make(chan struct{}), make(chan struct{})
			first := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
				rig.Pays(w, r)
				held <- struct{}{}
				<-free
				w.WriteHeader(http.StatusInternalServerError)
			})
			others := []*rig.Service{rig.NewService(t, r, paysAnd(201, "done")), rig.NewService(t, r, paysAnd(201, "done"))}
			answers := make(chan rig.HttpAnswer, 3)
			key := fmt.Sprint(&held)
			go func() { answers <- first.Asks(key, "{}") }()
			rig.WaitFor(t, "the first", held)
			before := r.Balance(1)
			for _, s := range others {
				go func() { answers <- s.Asks(key, "{}") }()
			}
			rig.Eventually(t, "both wait for the lock", func() bool { return waitingInserts(r) >= 2 })
			close(free)
			statuses := map[int]int{}
			for range 3 {
				statuses[(<-answers).Status]++
			}
			if statuses[500] != 1 || statuses[201] != 2 {
				t.Errorf("answered %v", statuses)
			}
			if n := others[0].Runs.Load() + others[1].Runs.Load(); n != 1 || r.Balance(1) != before+1 {
				t.Errorf("the others ran %d times, the balance rose by %d", n, r.Balance(1)-before)
			}
		}
	})
}

// waitingInserts counts the receipts that wait for another's.
func waitingInserts(r *rig.Rig) int {
	if r.DB.Driver == testdb.DriverPostgres {
		return r.Count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO bed_receipt%'")
	}
	return r.Count("SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND command <> 'Prepare' AND info LIKE 'INSERT INTO bed_receipt%'")
}

func TestHTTPStreamingUnderAKeyIsRefusedWithAClearError(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	r.Account(0)
	s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
		rig.Pays(w, r)
		_, flushes := w.(http.Flusher)
		_, _, hijack := w.(http.Hijacker).Hijack()
		rc := http.NewResponseController(w)
		flush := rc.Flush()
		_, _, hijackByController := rc.Hijack()
		for _, err := range []error{hijack, flush, hijackByController} {
			if flushes || !errors.Is(err, bedhttp.ErrBuffered) || !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("is a Flusher: %v; %v", flushes, err)
			}
		}
		_, _ = io.WriteString(w, "whole")
	})
	s.Wants(s.Asks("k", "{}"), 200, false)
	s.Wants(s.Asks("k", "{}"), 200, true)
	s.WantsRuns(1, 1)
}

func TestHTTPClientThatLeavesDoesNotUndoItsRequest(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		held, gone := make(chan struct{}), make(chan struct{})
		var once sync.Once
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			once.Do(func() {
				close(held)
				<-gone
			})
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler's context: %v", err)
			}
			paysAnd(201, "done")(w, r)
		})
		ctx, leave := context.WithCancel(context.Background())
		first := make(chan rig.HttpAnswer)
		go func() { first <- s.Asks("k", "{}", func(r *http.Request) { *r = *r.WithContext(ctx) }) }()
		rig.WaitFor(t, "the handler", held)
		leave()
		if a := <-first; a.Err == nil {
			t.Errorf("who left got %v", a)
		}
		close(gone)
		s.Wants(s.Asks("k", "{}"), 201, true)
		s.WantsRuns(1, 1)
	})
}

func TestHTTPHandlerThatRunsTooLongIsRolledBack(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		slow := true
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if rig.Pays(w, r); slow {
				<-r.Context().Done()
			}
		}, func(c *bedhttp.Config) { c.HandlerTimeout = 10 * time.Second })
		a := s.Asks("k", "{}")
		if s.Wants(a, http.StatusServiceUnavailable, false); a.Header.Get("Retry-After") == "" {
			t.Errorf("%v", a.Header)
		}
		slow = false
		s.Wants(s.Asks("k", "{}"), 200, false)
		s.WantsRuns(2, 1)
	})
}

func TestHTTPRefusalIsKeptAlthoughItsRowsWereRolledBack(t *testing.T) {
	t.Parallel()
	for name, refuses := range map[string]func(r *http.Request) error{
		"rows": func(r *http.Request) error {
			_, err := bedhttp.Tx(r.Context()).ExecContext(bedsql.RequireRows(r.Context(), 1), "UPDATE account SET balance = 7 WHERE id = 99")
			return err
		},
		"constraint": func(r *http.Request) error {
			_, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), "INSERT INTO account VALUES (1, 1)")
			return err
		},
		"the handler's own": func(r *http.Request) error {
			return errors.Join(errors.New("no"), bedhttp.Tx(r.Context()).Rollback())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachHome(t, func(t *testing.T, r *rig.Rig) {
				s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if err := refuses(r); err == nil {
						t.Error("nothing was refused")
					}
					w.WriteHeader(http.StatusConflict)
					_, _ = io.WriteString(w, "out of stock")
				})
				for _, replayed := range []bool{false, true} {
					a := s.Asks("k", "{}")
					if s.Wants(a, http.StatusConflict, replayed); string(a.Body) != "out of stock" {
						t.Errorf("%v", a)
					}
				}
				s.WantsRuns(1, 0)
			})
		})
	}
}

// The key keeps the response of a request that was rolled back, too.
func TestHTTPWriteAfterARollbackNeedsAKeyPart(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		var db *sql.DB
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if err := bedhttp.Tx(r.Context()).Rollback(); err != nil {
				t.Error(err)
			}
			_, err := db.ExecContext(r.Context(), rig.AddOne)
			rig.WantNamesKeyPart(t, "without one", err)
			if _, err := db.ExecContext(bedsql.WithKeyPart(r.Context(), "audit"), rig.AddOne); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusConflict)
		}, func(c *bedhttp.Config) { db = c.DB })
		s.Wants(s.Asks("k", "{}"), http.StatusConflict, false)
		s.Wants(s.Asks("k", "{}"), http.StatusConflict, true)
		s.WantsRuns(1, 1)
	})
}

// A final answer is kept, or it is none: a duplicate in another process may be handled instead.
func TestHTTPRefusalThatIsNotKeptIsNotSent(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		makesReceipts(r)
		rolledBack, held, free := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var cause atomic.Value
		one := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if err := bedhttp.Tx(r.Context()).Rollback(); err != nil {
				t.Error(err)
			}
			close(rolledBack)
			select {
			case <-held: // the duplicate has the key
			case <-time.After(rig.Patience):
				t.Error("the duplicate does not get the key")
			}
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "out of stock")
		}, func(c *bedhttp.Config) {
			c.Wait = 5 * time.Second
			c.OnError = func(_ *http.Request, err error) { cause.Store(err) }
		})
		other := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			close(held)
			<-free
			paysAnd(201, "done")(w, r)
		}, func(c *bedhttp.Config) { c.Wait = time.Minute })
		second := make(chan rig.HttpAnswer, 1)
		go func() {
			<-rolledBack
			second <- other.Asks("k", "{}")
		}()
		a := one.Asks("k", "{}")
		if a.Header.Get("Retry-After") == "" || strings.Contains(string(a.Body), "out of stock") || cause.Load() == nil {
			t.Errorf("%v, and OnError got %v", a, cause.Load())
		}
		close(free)
		select {
		case a := <-second:
			other.Wants(a, 201, false)
		case <-time.After(rig.Patience):
			t.Fatal("the duplicate is not answered")
		}
		one.Wants(one.Asks("k", "{}"), 201, true)
	})
}

func TestHTTPHandlerCannotCommitWithoutItsResponse(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			rig.Pays(w, r)
			if err := bedhttp.Tx(r.Context()).Commit(); err == nil {
				t.Error("it committed")
			}
		})
		s.Wants(s.Asks("k", "{}"), http.StatusServiceUnavailable, false)
		s.WantsRuns(1, 0)
	})
}

// A caller that gave up an earlier attempt learns from a refusal whether it is final.
func TestKeptResponsesSayThatTheyAreKept(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		for status, kept := range map[int]string{201: "?1", 402: "?1", 403: "", 500: ""} {
			s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Idempotency-Kept", "by the handler")
				paysAnd(status, "x")(w, r)
			})
			if got := s.Asks(fmt.Sprint("key", status), "{}").Header.Get("Idempotency-Kept"); got != kept {
				t.Errorf("%d: kept %q, want %q", status, got, kept)
			}
		}
	})
}
