package acceptance

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
	eachHome(t, func(t *testing.T, r *rig) {
		var h http.HandlerFunc
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if pays(w, r) {
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
			first := s.asks(name, "{}", method)
			paid++
			for range 2 {
				again := s.asks(name, "{}", method)
				if first.err != nil || again.status != first.status || !bytes.Equal(again.body, first.body) || first.replayed() || !again.replayed() {
					t.Errorf("%s: first %v, again %v", name, first, again)
				}
				for _, kept := range []string{"Content-Type", "Content-Length", "Location", "Content-Encoding", "Trailer", "Transfer-Encoding"} {
					if a, b := fmt.Sprintf("%q", first.header[kept]), fmt.Sprintf("%q", again.header[kept]); a != b {
						t.Errorf("%s: %s was %s and is %s", name, kept, a, b)
					}
				}
				if again.header.Get("Set-Cookie")+again.header.Get("Authorization")+again.header.Get("X-Other") != "" {
					t.Errorf("%s: a header was kept that must not be: %v", name, again.header)
				}
			}
			if name == "binary" && (first.status != http.StatusCreated || !bytes.Equal(first.body, everyByte) || first.header.Get("Set-Cookie") == "" || first.header.Get("Location") != "/orders/\xe4\xff") {
				t.Errorf("the first httpAnswer was changed: %v %q", first, first.header)
			}
			if name == "HEAD" && first.header.Get("Content-Length") != "7" {
				t.Errorf("HEAD: %q", first.header)
			}
		}
		s.wantsRuns(int64(paid), paid)
		r.wantNoLog()
	})
}

// The largest response that Config.MaxResponse may allow fits the receipt's column.
func TestHTTPLargestResponseComesBack(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		for _, limit := range []int{0, 8 << 20} {
			size := max(limit, 1<<20) - 100 // the headers count
			s := newService(t, r, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(bytes.Repeat([]byte{0xff, 0x00, '<', '"'}, size/4))
			}, func(c *bedhttp.Config) { c.MaxResponse, c.Wait = limit, time.Minute })
			first := s.asks(fmt.Sprint(limit), "{}")
			s.wants(first, 200, false)
			again := s.asks(fmt.Sprint(limit), "{}")
			if s.wants(again, 200, true); len(first.body) != size || !bytes.Equal(first.body, again.body) {
				t.Errorf("%d bytes, and then %d, want %d", len(first.body), len(again.body), size)
			}
			s.wantsRunsOnce()
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
			eachHome(t, func(t *testing.T, r *rig) {
				failing := true
				s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if pays(w, r); failing {
						fails(w)
					}
				})
				if a := s.asks("k", "{}"); name == "panic" && a.err == nil || name != "panic" && (a.status < 500 && a.status != 429) {
					t.Errorf("the first httpAnswer: %v", a)
				}
				s.wantsRuns(1, 0)
				failing = false
				s.wants(s.asks("k", "{}"), 200, false)
				s.wants(s.asks("k", "{}"), 200, true)
				s.wantsRuns(2, 1)
			})
		})
	}
}

func TestHTTPTwoTenantsWithOneKeyNeverMeet(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			pays(w, r)
			_, _ = io.WriteString(w, r.Header.Get("Tenant"))
		})
		// The names and keys of some would be the same if they were written one after the other.
		pairs := [][2]string{{"t", "1k"}, {"t1", "k"}, {"t1k", "x"}, {"T1", "k"}, {"t1 ", "K"}, {"ab", "c"}, {"a", "bc"}}
		for _, replayed := range []bool{false, true} {
			for _, p := range pairs {
				a := s.asks(p[1], "{}", func(r *http.Request) { r.Header.Set("Tenant", p[0]) })
				if s.wants(a, 200, replayed); string(a.body) != strings.TrimSpace(p[0]) {
					t.Errorf("%q was answered as %q", p, a.body)
				}
			}
		}
		s.wantsRuns(int64(len(pairs)), len(pairs))
		s.wants(s.asks("k", "{}", func(r *http.Request) { r.Header.Del("Tenant") }), http.StatusForbidden, false)
	})
}

func TestHTTPTwoServicesOnOneDatabaseNeverMeet(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		named := func(name string) *service {
			return newService(t, r, paysAnd(201, name), func(c *bedhttp.Config) { c.Service = name })
		}
		payments, shipments, process := named("payments"), named("shipments"), named("payments")
		for _, c := range []struct {
			s        *service
			body     string
			replayed bool
		}{{payments, "payments", false}, {shipments, "shipments", false}, {payments, "payments", true}, {shipments, "shipments", true}, {process, "payments", true}} {
			a := c.s.asks("k", "{}")
			if c.s.wants(a, 201, c.replayed); string(a.body) != c.body {
				t.Errorf("%s was answered %q", c.body, a.body)
			}
		}
		payments.wantsRuns(1, 2)
	})
}

func TestHTTPKeyWithAnotherRequestIsUnprocessable(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		s := newService(t, r, paysAnd(201, "done"))
		s.wants(s.asks(`"k"`, "{}"), 201, false)
		for name, other := range map[string]httpAnswer{
			"body":         s.asks("k", "{} "),
			"method":       s.asks("k", "{}", func(r *http.Request) { r.Method = "PATCH" }),
			"path":         s.asks("k", "{}", func(r *http.Request) { r.URL.Path = "/order" }),
			"query":        s.asks("k", "{}", func(r *http.Request) { r.URL.RawQuery = "n=2" }),
			"content type": s.asks("k", "{}", func(r *http.Request) { r.Header.Set("Content-Type", "text/json") }),
		} {
			if s.wants(other, http.StatusUnprocessableEntity, false); other.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(string(other.body), "168 hours") {
				t.Errorf("%s: %v", name, other)
			}
		}
		s.wants(s.asks("k", "{}", func(r *http.Request) { r.Header.Set("Accept", "text/plain") }), 201, true)
		s.wantsRuns(1, 1)
	})
}

func TestHTTPThousandDuplicatesAtOnce(t *testing.T) {
	t.Parallel()
	const n = 1000
	eachHome(t, func(t *testing.T, r *rig) {
		var arrived atomic.Int64
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			for begun := time.Now(); arrived.Load() < n && time.Since(begun) < patience; {
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
				if s.handler.ServeHTTP(w, req); w.Code != 201 || w.Body.String() != "done" {
					t.Errorf("%d %q", w.Code, w.Body)
				}
				if w.Header().Get("Idempotent-Replayed") == "" {
					first.Add(1)
				}
			})
		}
		all.Wait()
		if s.wantsRuns(1, 1); first.Load() != 1 || arrived.Load() != n {
			t.Errorf("of %d answers %d were not replays", arrived.Load(), first.Load())
		}
	})
}

func TestHTTPDuplicatesWaitTogetherAndDoNotDrainThePool(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		const n = 20
		held, free := make(chan struct{}), make(chan struct{})
		var cfg bedhttp.Config
		var arrived atomic.Int64
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			held <- struct{}{}
			<-free
			pays(w, r)
		}, func(c *bedhttp.Config) {
			c.Wait = time.Minute
			c.Client = func(*http.Request) string {
				arrived.Add(1)
				return "t"
			}
			cfg = *c
		})
		answers := make(chan httpAnswer)
		for range n {
			go func() { answers <- s.asks("k", "{}") }()
		}
		waitFor(t, "the handler", held)
		eventually(t, "all have arrived", func() bool { return arrived.Load() == n })
		if open := cfg.DB.Stats().InUse; open != 1 {
			t.Errorf("%d connections are in use for one key", open)
		}
		close(free)
		for range n {
			if a := <-answers; a.status != 200 {
				t.Errorf("%v", a)
			}
		}
		s.wantsRuns(1, 1)
	})
}

func TestHTTPDuplicateOfARequestThatRunsIsConflict(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		r.makesReceipts()
		held, free := make(chan struct{}), make(chan struct{})
		h := func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 0 {
				held <- struct{}{}
				<-free
			}
			paysAnd(201, "done")(w, r)
		}
		var home *sql.DB
		one := newService(t, r, h, func(c *bedhttp.Config) { home = c.DB })
		short := func(c *bedhttp.Config) { c.Wait = 5 * time.Second }
		same, other := newService(t, r, h, short, func(c *bedhttp.Config) { c.DB = home }), newService(t, r, h, short)
		other.wants(other.asks("first", ""), 201, false) // so that it has a connection
		first := make(chan httpAnswer)
		go func() { first <- one.asks("k", "{}") }()
		waitFor(t, "the handler", held)
		for where, s := range map[string]*service{"this process": same, "another process": other} {
			a := s.asks("k", "{}")
			if s.wants(a, http.StatusConflict, false); a.header.Get("Retry-After") == "" || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("in %s: %v %v", where, a, a.header)
			}
		}
		close(free)
		one.wants(<-first, 201, false)
		other.wants(other.asks("k", "{}"), 201, true)
		one.wantsRuns(1, 2)
	})
}

func TestHTTPThreeInsertersOfOneKeyMeetNoDeadlock(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		for range 5 {
			held, free := make(chan struct{}), make(chan struct{})
			first := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
				pays(w, r)
				held <- struct{}{}
				<-free
				w.WriteHeader(http.StatusInternalServerError)
			})
			others := []*service{newService(t, r, paysAnd(201, "done")), newService(t, r, paysAnd(201, "done"))}
			answers := make(chan httpAnswer, 3)
			key := fmt.Sprint(&held)
			go func() { answers <- first.asks(key, "{}") }()
			waitFor(t, "the first", held)
			before := r.balance(1)
			for _, s := range others {
				go func() { answers <- s.asks(key, "{}") }()
			}
			eventually(t, "both wait for the lock", func() bool { return r.waitingInserts() >= 2 })
			close(free)
			statuses := map[int]int{}
			for range 3 {
				statuses[(<-answers).status]++
			}
			if statuses[500] != 1 || statuses[201] != 2 {
				t.Errorf("answered %v", statuses)
			}
			if n := others[0].runs.Load() + others[1].runs.Load(); n != 1 || r.balance(1) != before+1 {
				t.Errorf("the others ran %d times, the balance rose by %d", n, r.balance(1)-before)
			}
		}
	})
}

// waitingInserts counts the receipts that wait for another's.
func (r *rig) waitingInserts() int {
	if r.db.Driver == testdb.DriverPostgres {
		return r.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO bed_receipt%'")
	}
	return r.count("SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT INTO bed_receipt%'")
}

func TestHTTPStreamingUnderAKeyIsRefusedWithAClearError(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t))
	r.account(0)
	s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
		pays(w, r)
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
	s.wants(s.asks("k", "{}"), 200, false)
	s.wants(s.asks("k", "{}"), 200, true)
	s.wantsRuns(1, 1)
}

func TestHTTPClientThatLeavesDoesNotUndoItsRequest(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		held, gone := make(chan struct{}), make(chan struct{})
		var once sync.Once
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
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
		first := make(chan httpAnswer)
		go func() { first <- s.asks("k", "{}", func(r *http.Request) { *r = *r.WithContext(ctx) }) }()
		waitFor(t, "the handler", held)
		leave()
		if a := <-first; a.err == nil {
			t.Errorf("who left got %v", a)
		}
		close(gone)
		s.wants(s.asks("k", "{}"), 201, true)
		s.wantsRuns(1, 1)
	})
}

func TestHTTPHandlerThatRunsTooLongIsRolledBack(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		slow := true
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if pays(w, r); slow {
				<-r.Context().Done()
			}
		}, func(c *bedhttp.Config) { c.HandlerTimeout = 10 * time.Second })
		a := s.asks("k", "{}")
		if s.wants(a, http.StatusServiceUnavailable, false); a.header.Get("Retry-After") == "" {
			t.Errorf("%v", a.header)
		}
		slow = false
		s.wants(s.asks("k", "{}"), 200, false)
		s.wantsRuns(2, 1)
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
			eachHome(t, func(t *testing.T, r *rig) {
				s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if err := refuses(r); err == nil {
						t.Error("nothing was refused")
					}
					w.WriteHeader(http.StatusConflict)
					_, _ = io.WriteString(w, "out of stock")
				})
				for _, replayed := range []bool{false, true} {
					a := s.asks("k", "{}")
					if s.wants(a, http.StatusConflict, replayed); string(a.body) != "out of stock" {
						t.Errorf("%v", a)
					}
				}
				s.wantsRuns(1, 0)
			})
		})
	}
}

// The key keeps the response of a request that was rolled back, too.
func TestHTTPWriteAfterARollbackNeedsAKeyPart(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		var db *sql.DB
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if err := bedhttp.Tx(r.Context()).Rollback(); err != nil {
				t.Error(err)
			}
			_, err := db.ExecContext(r.Context(), addOne)
			wantNamesKeyPart(t, "without one", err)
			if _, err := db.ExecContext(bedsql.WithKeyPart(r.Context(), "audit"), addOne); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusConflict)
		}, func(c *bedhttp.Config) { db = c.DB })
		s.wants(s.asks("k", "{}"), http.StatusConflict, false)
		s.wants(s.asks("k", "{}"), http.StatusConflict, true)
		s.wantsRuns(1, 1)
	})
}

// A final answer is kept, or it is none: a duplicate in another process may be handled instead.
func TestHTTPRefusalThatIsNotKeptIsNotSent(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		r.makesReceipts()
		rolledBack, held, free := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var cause atomic.Value
		one := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if err := bedhttp.Tx(r.Context()).Rollback(); err != nil {
				t.Error(err)
			}
			close(rolledBack)
			select {
			case <-held: // the duplicate has the key
			case <-time.After(patience):
				t.Error("the duplicate does not get the key")
			}
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "out of stock")
		}, func(c *bedhttp.Config) {
			c.Wait = 5 * time.Second
			c.OnError = func(_ *http.Request, err error) { cause.Store(err) }
		})
		other := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			close(held)
			<-free
			paysAnd(201, "done")(w, r)
		}, func(c *bedhttp.Config) { c.Wait = time.Minute })
		second := make(chan httpAnswer, 1)
		go func() {
			<-rolledBack
			second <- other.asks("k", "{}")
		}()
		a := one.asks("k", "{}")
		if a.header.Get("Retry-After") == "" || strings.Contains(string(a.body), "out of stock") || cause.Load() == nil {
			t.Errorf("%v, and OnError got %v", a, cause.Load())
		}
		close(free)
		select {
		case a := <-second:
			other.wants(a, 201, false)
		case <-time.After(patience):
			t.Fatal("the duplicate is not answered")
		}
		one.wants(one.asks("k", "{}"), 201, true)
	})
}

func TestHTTPHandlerCannotCommitWithoutItsResponse(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			pays(w, r)
			if err := bedhttp.Tx(r.Context()).Commit(); err == nil {
				t.Error("it committed")
			}
		})
		s.wants(s.asks("k", "{}"), http.StatusServiceUnavailable, false)
		s.wantsRuns(1, 0)
	})
}
