package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
)

func TestFailedLogInsAreSlowedDown(t *testing.T) {
	t.Parallel()
	c, _ := stage(t, Config{Users: people, Tokens: programs})
	began := time.Now()
	answers := make(chan int)
	const guesses = 40
	for i := range guesses {
		go func() {
			q := request{path: "/api/v1/overview", header: map[string]string{"Authorization": basic("otto", fmt.Sprint("guess", i))}}
			if i%2 == 0 {
				q.header["Authorization"] = fmt.Sprint("Bearer guess", i)
			}
			answers <- ask4(t, c, q).Code
		}()
	}
	// Amid the guesses, from the same address.
	if w := ask4(t, c, request{path: "/api/v1/overview", as: "rita"}); w.Code != 200 {
		t.Errorf("a right password amid guesses: %d", w.Code)
	}
	if w := ask4(t, c, request{path: "/api/v1/overview", as: "token read-token"}); w.Code != 200 {
		t.Errorf("a right token amid guesses: %d", w.Code)
	}
	for range guesses {
		if code := <-answers; code != 401 && code != 429 {
			t.Errorf("a guess: %d", code)
		}
	}
	if took := time.Since(began); took < time.Second || took > time.Minute {
		t.Errorf("%d guesses took %v", guesses, took)
	}
	began = time.Now()
	if w := ask4(t, c, request{path: "/api/v1/overview", as: "otto"}); w.Code != 200 || time.Since(began) > time.Minute {
		t.Errorf("the right password afterwards: %d after %v", w.Code, time.Since(began))
	}
}

// Two hundred threads send wrong passwords without a pause. A right password, never compared
// before, still gets in, in time: from their address and from another, even for the name being
// guessed.
func TestGuessesKeepNobodyOut(t *testing.T) { // alone: it is about the time that comparing takes
	var users []User
	for i := range 20 {
		hash, err := bcrypt.GenerateFromPassword([]byte(fmt.Sprintf("u%d-pw", i)), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, User{fmt.Sprint("u", i), string(hash), Read})
	}
	for what, guessed := range map[string]func(i int) string{
		"one name":   func(int) string { return "u0" },
		"all names":  func(i int) string { return fmt.Sprint("u", i%20) },
		"many names": func(i int) string { return fmt.Sprint("nobody", i) },
	} {
		t.Run(what, func(t *testing.T) {
			c, _ := stage(t, Config{Users: users})
			ctx, stop := context.WithCancel(t.Context())
			var attack sync.WaitGroup
			var failed, slowest atomic.Int64
			for i := range 200 {
				attack.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						began := time.Now()
						r := httptest.NewRequestWithContext(ctx, "GET", "/api/v1/overview", nil)
						r.Host, r.RemoteAddr = listen, "192.0.2.66:7777"
						r.SetBasicAuth(guessed(i), fmt.Sprint("guess ", i, " ", n))
						w := httptest.NewRecorder()
						c.ServeHTTP(w, r)
						if w.Code == http.StatusOK && ctx.Err() == nil {
							t.Errorf("a guess got in")
						}
						if took := int64(time.Since(began)); took > slowest.Load() {
							slowest.Store(took)
						}
						failed.Add(1)
					}
				})
			}
			for failed.Load() < 5 {
				time.Sleep(time.Millisecond)
			}
			for i, u := range users {
				from := []string{"192.0.2.66:8888", "198.51.100.1:9", "[2001:db8::1]:9"}[i%3]
				began := time.Now()
				if w := ask4(t, c, request{path: "/api/v1/overview", as: u.Name, from: from}); w.Code != http.StatusOK || time.Since(began) > time.Minute {
					t.Errorf("%s from %s: %d after %v", u.Name, from, w.Code, time.Since(began))
				}
			}
			stop()
			attack.Wait()
			if took := time.Duration(slowest.Load()); took > time.Minute {
				t.Errorf("a failure was answered after %v", took)
			}
		})
	}
}

func TestAnIPv6NetworkIsOneAddress(t *testing.T) {
	t.Parallel()
	of := func(peer string) string { return address(&http.Request{RemoteAddr: peer}) }
	if of("[2001:db8::1]:1") != of("[2001:db8::ffff:2]:9") || of("[2001:db8::1]:1") == of("[2001:db8:0:1::1]:1") {
		t.Error("a host can have as many addresses as it likes")
	}
	if of("192.0.2.1:1") != of("[::ffff:192.0.2.1]:2") || of("192.0.2.1:1") == of("192.0.2.2:1") {
		t.Error("IPv4 addresses are mixed up")
	}
}

// A comparison takes as long as on a busy machine, and two hundred threads guess without a pause.
// Right passwords are still compared, from the same address and from another.
func TestRightPasswordsAreComparedAmidGuesses(t *testing.T) {
	t.Parallel()
	for what, attack := range map[string]struct {
		compare time.Duration
		name    func(i int) string
	}{
		"one name":   {100 * time.Millisecond, func(int) string { return "u0" }},
		"all names":  {100 * time.Millisecond, func(i int) string { return fmt.Sprint("u", i%20) }},
		"many names": {time.Second, func(int) string { return "" }}, // of no user
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSlowly(2)
				ctx, stop := context.WithCancel(t.Context())
				compare := func(from, name string) error {
					done, err := s.turn(ctx, from, name)
					if err == nil {
						time.Sleep(attack.compare)
						done()
					}
					return err
				}
				var threads sync.WaitGroup
				for i := range 200 {
					threads.Go(func() {
						for ctx.Err() == nil {
							began := time.Now()
							if compare("one", attack.name(i)) == nil {
								_ = s.failed(ctx, began, "one", attack.name(i))
							}
							if took := time.Since(began); took >= 15*time.Second {
								t.Errorf("a guess was answered after %v", took)
							}
						}
					})
				}
				for i := range 22 {
					time.Sleep(time.Second)
					from := []string{"one", "another"}[i%2]
					began := time.Now()
					if err := compare(from, fmt.Sprint("u", i%20)); err != nil {
						t.Errorf("u%d from %s: %v after %v", i%20, from, err, time.Since(began))
					}
				}
				stop()
				threads.Wait()
			})
		})
	}
}
