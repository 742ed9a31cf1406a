package call_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

func TestCallIsLoggedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce})
	p.answers(func(w http.ResponseWriter, r *http.Request) {
		if units := inLog(t, storage); len(units) != 1 || units[0].Statements[0].SQL != "CALL POST /orders/7/charge" || units[0].DataSource != "payments" {
			t.Errorf("while it is handled the log holds %+v", units)
		}
		w.Header().Set("Idempotency-Scope", "s")
		w.Header().Set("Location", "/charges/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	})
	res, err := s.Send(t.Context(), post(t, "/orders/7/charge?currency=EUR", "12.50"))
	must(t, err)
	code, err := res.Status()
	must(t, err)
	header, err := res.Header()
	must(t, err)
	body, err := res.Body()
	must(t, err)
	if code != http.StatusCreated || string(body) != "charged" || header.Get("Location") != "/charges/1" {
		t.Errorf("the answer is %d %v %q", code, header, body)
	}
	must(t, s.Close()) // its removal does not hold up the call
	if left := inLog(t, storage); len(left) > 0 {
		t.Errorf("left in the log: %v", left)
	}
	asked := p.requests()
	if len(asked) != 1 || asked[0].method != "POST" || asked[0].address != "/v1/orders/7/charge?currency=EUR" || asked[0].body != "12.50" || asked[0].header.Get("Content-Type") != "text/plain" {
		t.Errorf("asked: %+v", asked)
	}
	if key := asked[0].key; len(key) != 70 || !strings.HasPrefix(key, `"bed-`) {
		t.Errorf("the key is %s", key)
	}
}

// slow is a log whose removals wait.
type slow struct {
	txlog.Storage
	removes <-chan struct{}
}

func (s slow) Remove(ctx context.Context, units ...*entry.Unit) error {
	<-s.removes
	return s.Storage.Remove(ctx, units...)
}

// If the job sends a delivered call again, a service that recognizes keys does nothing.
func TestKeyedCallDoesNotWaitForItsRemoval(t *testing.T) {
	t.Parallel()
	p, storage, removes := newPeer(t), txlog.NewMemory(), make(chan struct{})
	s := newService(t, p, bedsql.Config{Storage: slow{storage, removes}, Guarantee: bedsql.ExactlyOnce})
	defer close(removes)
	sent := make(chan error, 1)
	go func() {
		_, err := s.Send(context.Background(), post(t, "/charges", "a"))
		sent <- err
	}()
	select {
	case err := <-sent:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the call waits for the removal of its entry")
	}
	if left := inLog(t, storage); len(left) != 1 {
		t.Errorf("left in the log: %v", left)
	}
}

// Each attempt has the same key, so that the service handles the call once.
func TestAttemptsOfACallHaveOneKey(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage, SyncMaxDeliveryTryTimes: 2})
	p.answers(firstOf(lost, status(500, "Idempotency-Scope", "s"), lost))
	_, err := s.Send(t.Context(), post(t, "/charges", "a"))
	if !errors.Is(err, bedsql.ErrPending) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
		t.Fatalf("Send: %v", err)
	}
	p.answers(nil)
	if r := round(t, storage, p); r.Delivered != 1 {
		t.Errorf("the job: %+v", r)
	}
	asked := p.requests()
	if len(asked) < 4 || slices.ContainsFunc(asked, func(r request) bool { return r.key != asked[0].key || r.body != "a" }) {
		t.Errorf("asked: %+v", asked)
	}
	_, err = s.Send(t.Context(), post(t, "/charges", "a"))
	must(t, err)
	if again := p.requests(); again[len(again)-1].key == asked[0].key {
		t.Error("another call has the same key")
	}
}

func TestRefusedCallIsAStatusError(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage})
	p.answers(status(402, "Content-Type", "application/problem+json", "X-Reason", "limit"))
	_, err := s.Send(t.Context(), post(t, "/charges", "a"))
	var refused *call.StatusError
	if !errors.As(err, &refused) || refused.Status != 402 || refused.Header.Get("X-Reason") != "limit" || string(refused.Body) != `{"title": "no"}` || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("Send: %v (%+v)", err, refused)
	}
	if want := "bed: the service answered 402 Payment Required (no)"; err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
	if left := inLog(t, storage); len(left) > 0 {
		t.Errorf("left in the log: %v", left)
	}
}

// A refusal after an unanswered attempt proves nothing, unless the service keeps it for the key.
func TestRefusalAfterALostAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers []string
		outcome bedsql.Outcome
		left    int
	}{
		"kept":       {[]string{"Idempotency-Scope", "s", "Idempotency-Kept", "?1"}, bedsql.OutcomeRefused, 0},
		"replayed":   {[]string{"Idempotency-Scope", "s", "Idempotent-Replayed", "true"}, bedsql.OutcomeRefused, 0},
		"not kept":   {[]string{"Idempotency-Scope", "s"}, bedsql.OutcomeAccepted, 1},
		"by anybody": {nil, bedsql.OutcomeAccepted, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, storage := newPeer(t), txlog.NewMemory()
			s := newService(t, p, bedsql.Config{Storage: storage})
			p.answers(firstOf(lost, lost, status(402, c.headers...))) // net/http itself tries a keyed request twice
			_, err := s.Send(t.Context(), post(t, "/charges", "a"))
			left := inLog(t, storage)
			if bedsql.OutcomeOf(err) != c.outcome || len(left) != c.left {
				t.Fatalf("Send: %v, left in the log: %v", err, left)
			}
			if c.left > 0 && (!left[0].Parked || !left[0].InDoubt) {
				t.Errorf("the entry is %+v", left[0])
			}
		})
	}
}

// A fault for an operator refuses no call, and costs no try.
func TestCallsWaitForAnOperator(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer    http.HandlerFunc
		guarantee bedsql.Guarantee
		inDoubt   bool
	}{
		"an expired token": {status(401), bedsql.AtLeastOnce, false},
		"a wrong path":     {status(404), bedsql.AtLeastOnce, false},
		"a redirect":       {status(302, "Location", "https://elsewhere.example/"), bedsql.AtLeastOnce, false},
		"another scope":    {status(421), bedsql.ExactlyOnce, false},
		"a captive page":   {status(200, "Content-Type", "text/html"), bedsql.ExactlyOnce, true},
		"a strange status": {status(418), bedsql.AtLeastOnce, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, storage := newPeer(t), txlog.NewMemory()
			s := newService(t, p, bedsql.Config{Storage: storage, Guarantee: c.guarantee})
			p.answers(c.answer)
			if _, err := s.Send(t.Context(), post(t, "/charges", "a")); !errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("Send: %v", err)
			}
			if n := len(p.requests()); n != 1 {
				t.Errorf("the caller has asked %d times", n)
			}
			for range 12 {
				if r := round(t, storage, p); r.Parked != 0 || r.Claimed != 1 {
					t.Fatalf("the job: %+v", r)
				}
				time.Sleep(2 * time.Millisecond) // UnknownDataSourceDelay, on the log's clock
			}
			if u := inLog(t, storage)[0]; u.Tries != 0 || u.InDoubt != c.inDoubt {
				t.Errorf("the entry has %d tries, in doubt %v: %s", u.Tries, u.InDoubt, u.LastError)
			}
			p.answers(nil)
			if r := round(t, storage, p); r.Delivered != 1 {
				t.Errorf("when it is fixed: %+v", r)
			}
		})
	}
}

// A service that is away, with or without a proxy before it, costs no try.
func TestOutageCostsNoTry(t *testing.T) {
	t.Parallel()
	p, away, storage := newPeer(t), newPeer(t), txlog.NewMemory()
	s := newService(t, away, bedsql.Config{Storage: storage, SyncMaxDeliveryTryTimes: 1})
	away.Close()
	_, err := s.Send(t.Context(), post(t, "/charges", "a"))
	if u := inLog(t, storage); !errors.Is(err, bedsql.ErrPending) || len(u) != 1 || u[0].InDoubt {
		t.Fatalf("Send: %v, the log: %+v", err, u)
	}
	proxy := newPeer(t)
	proxy.Config.Handler = status(502)
	for range 12 {
		for _, down := range []*peer{away, proxy} {
			if r := round(t, storage, down); r.Parked != 0 || r.Delivered != 0 {
				t.Fatalf("the job: %+v", r)
			}
		}
	}
	if u := inLog(t, storage)[0]; u.Tries != 0 {
		t.Errorf("the entry has %d tries", u.Tries)
	}
	if r := round(t, storage, p); r.Delivered != 1 {
		t.Errorf("when it is back: %+v", r)
	}
}

// net/http sends a keyed request again if a kept connection breaks. That nobody listens then does not
// say that the first one was not handled.
func TestCallIsInDoubtIfOnlyItsRepetitionFindsNobody(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage, NoSyncRetry: true})
	_, err := s.Send(t.Context(), post(t, "/charges", "a")) // leaves a connection
	must(t, err)
	p.answers(func(w http.ResponseWriter, r *http.Request) {
		_ = p.Listener.Close() // it is killed while it handles the call
		lost(w, r)
	})
	_, err = s.Send(t.Context(), post(t, "/charges", "b"))
	if u := inLog(t, storage); !errors.Is(err, bedsql.ErrPending) || len(u) != 1 || !u[0].InDoubt || len(p.requests()) != 2 {
		t.Errorf("Send: %v, %d requests, the log: %+v", err, len(p.requests()), u)
	}
}

// The answer 503 of bedhttp, and a request that is still being handled, cost no try either.
func TestBusyServiceCostsNoTry(t *testing.T) {
	t.Parallel()
	const types = "https://github.com/bedsql/bed/blob/main/docs/http.md#"
	problem := func(code int, name string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Scope", "s")
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"type": "`+types+name+`"}`)
		}
	}
	for name, c := range map[string]struct {
		code    int
		inDoubt bool
	}{"outstanding": {409, false}, "try-again": {503, false}, "too-many-requests": {503, false}, "outcome-unknown": {503, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, storage := newPeer(t), txlog.NewMemory()
			s := newService(t, p, bedsql.Config{Storage: storage, SyncMaxDeliveryTryTimes: 1})
			p.answers(problem(c.code, name))
			if _, err := s.Send(t.Context(), post(t, "/charges", "a")); !errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("Send: %v", err)
			}
			for range 12 {
				round(t, storage, p)
			}
			if u := inLog(t, storage)[0]; u.Tries != 0 || u.Parked || u.InDoubt != c.inDoubt {
				t.Errorf("the entry: %d tries, in doubt %v, parked %v", u.Tries, u.InDoubt, u.Parked)
			}
		})
	}
}

func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage})
	p.answers(status(429, "Retry-After", "3600"))
	if _, err := s.Send(t.Context(), post(t, "/charges", "a")); !errors.Is(err, bedsql.ErrPending) || len(p.requests()) != 1 {
		t.Fatalf("Send: %v after %d requests", err, len(p.requests()))
	}
	round(t, storage, p)
	if r := round(t, storage, p); r.Claimed != 0 || len(p.requests()) != 2 {
		t.Errorf("before its time: %+v, %d requests", r, len(p.requests()))
	}
	// The service's wish has a bound.
	p, storage = newPeer(t), txlog.NewMemory()
	s = newService(t, p, bedsql.Config{Storage: storage})
	p.answers(status(429, "Retry-After", "3600"))
	_, _ = s.Send(t.Context(), post(t, "/charges", "a"))
	bound := func(c *asyncjob.Config) { c.RetryDelay, c.RetryDelayMax = time.Millisecond, time.Millisecond }
	round(t, storage, p, bound)
	for deadline := time.Now().Add(time.Minute); round(t, storage, p, bound).Claimed == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the wish of the service is obeyed beyond RetryDelayMax")
		}
	}
}

func TestCallsOfAStagedGroupAreSentByEnd(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	s := newService(t, p, bedsql.Config{})
	ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
	must(t, err)
	one, err := s.Send(ctx, post(t, "/charges", "one"))
	must(t, err)
	two, err := s.Send(ctx, post(t, "/charges", "two"))
	must(t, err)
	if _, err := one.Status(); !errors.Is(err, bedsql.ErrStaged) || len(p.requests()) != 0 {
		t.Fatalf("before End: %v, asked %v", err, p.requests())
	}
	must(t, soft.End(t.Context()))
	for r, want := range map[*call.Result]string{one: "made from one", two: "made from two"} {
		if body, err := r.Body(); err != nil || string(body) != want {
			t.Errorf("%q, %v; want %q", body, err, want)
		}
	}
	if asked := p.requests(); len(asked) != 2 || asked[0].body != "one" || asked[0].key == asked[1].key {
		t.Errorf("asked: %+v", asked)
	}
	ctx, soft, err = bedsql.Begin(t.Context(), bedsql.Staged())
	must(t, err)
	three, err := s.Send(ctx, post(t, "/charges", "three"))
	must(t, err)
	p.answers(status(402))
	err = soft.End(t.Context())
	if _, serr := three.Status(); !errors.As(serr, new(*call.StatusError)) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("a group that is refused: %v, %v", err, serr)
	}
}

// The request that an application sends again makes the same calls.
func TestCallsUnderAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	p := newPeer(t)
	s := newService(t, p, bedsql.Config{})
	keys := func(send func(ctx context.Context)) (all []string) {
		before := len(p.requests())
		ctx, _ := bedsql.WithIdempotencyKey(t.Context(), "request 1")
		send(ctx)
		for _, r := range p.requests()[before:] {
			all = append(all, r.key)
		}
		return all
	}
	plain := func(ctx context.Context) {
		_, err := s.Send(ctx, post(t, "/charges", "a"))
		must(t, err)
		if _, err := s.Send(ctx, post(t, "/charges", "b")); !errors.Is(err, bedsql.ErrKeyUnusable) {
			t.Errorf("a second call under one key: %v", err)
		}
		_, err = s.Send(bedsql.WithKeyPart(ctx, "b"), post(t, "/charges", "b"))
		must(t, err)
	}
	staged := func(ctx context.Context) {
		ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		must(t, err)
		for _, body := range []string{"a", "b", "c"} {
			_, err := s.Send(ctx, post(t, "/charges", body))
			must(t, err)
		}
		must(t, soft.End(t.Context()))
	}
	for name, send := range map[string]func(context.Context){"plain": plain, "staged": staged} {
		first, again := keys(send), keys(send)
		if !slices.Equal(first, again) || len(first) < 2 || first[0] == first[1] {
			t.Errorf("%s: the keys are %v, then %v", name, first, again)
		}
	}
	p.answers(status(200, "Idempotent-Replayed", "true"))
	ctx, key := bedsql.WithIdempotencyKey(t.Context(), "request 2")
	_, err := s.Send(ctx, post(t, "/charges", "a"))
	if must(t, err); !key.Replayed() {
		t.Error("the answer to an earlier request is not reported as replayed")
	}
	// A call that was refused, or never recorded, frees its key.
	p.answers(status(422))
	ctx, _ = bedsql.WithIdempotencyKey(t.Context(), "request 3")
	_, _ = s.Send(ctx, post(t, "/charges", "a"))
	p.answers(nil)
	_, err = s.Send(ctx, post(t, "/charges", "a"))
	must(t, err)
}

func TestCallsUnderAnOrderKeyGoInOrder(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage, NoSyncRetry: true})
	ctx := bedsql.WithOrderKey(t.Context(), "account 1")
	p.answers(firstOf(lost, lost))
	for _, body := range []string{"one", "two"} {
		if _, err := s.Send(ctx, post(t, "/charges", body)); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("Send: %v", err)
		}
	}
	p.answers(nil)
	before := len(p.requests())
	for range 3 {
		round(t, storage, p)
	}
	if asked := p.requests()[before:]; len(asked) != 2 || asked[0].body != "one" || asked[1].body != "two" {
		t.Errorf("asked: %+v", asked)
	}
}

func TestRequestsThatMayNotBeSentAreRefused(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s := newService(t, p, bedsql.Config{Storage: storage})
	header := func(name, value string) *http.Request {
		r := post(t, "/charges", "a")
		r.Header.Set(name, value)
		return r
	}
	change := func(f func(*http.Request)) *http.Request {
		r := post(t, "/charges", "a")
		f(r)
		return r
	}
	for name, r := range map[string]*http.Request{
		"nil":                nil,
		"a scheme":           post(t, "https://elsewhere.example/charges", ""),
		"a host":             change(func(r *http.Request) { r.Host = "elsewhere.example" }),
		"a fragment":         post(t, "/charges#a", ""),
		"no path":            post(t, "", ""),
		"an empty segment":   post(t, "/a//b", ""),
		"an escaped one":     post(t, "/a%2f%2fb", ""),
		"dots":               post(t, "/a/../b", ""),
		"escaped dots":       post(t, "/a/%2e%2E/b", ""),
		"a backslash":        post(t, "/a%5cb", ""),
		"a control byte":     post(t, "/a%00b", ""),
		"GET":                change(func(r *http.Request) { r.Method = "GET" }),
		"CONNECT":            change(func(r *http.Request) { r.Method = "CONNECT" }),
		"no method":          change(func(r *http.Request) { r.Method = "" }),
		"credentials":        header("Authorization", "Bearer x"),
		"a cookie":           header("Cookie", "a=b"),
		"a key":              header("Idempotency-Key", "x"),
		"an undo":            header("Idempotency-Undoes", "x"),
		"a proxy's":          header("Proxy-Authorization", "x"),
		"a forwarded":        header("X-Forwarded-For", "10.0.0.1"),
		"a connection's":     header("Connection", "close"),
		"a broken name":      change(func(r *http.Request) { r.Header["a b"] = []string{"c"} }),
		"a broken value":     header("X-A", "a\r\nb: c"),
		"a trailer":          change(func(r *http.Request) { r.Trailer = http.Header{"X-A": nil} }),
		"a body over 1 MiB":  post(t, "/charges", strings.Repeat("a", 1<<20+1)),
		"a body that breaks": change(func(r *http.Request) { r.Body = io.NopCloser(broken{}) }),
	} {
		_, err := s.Send(t.Context(), r)
		if err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || strings.Contains(err.Error(), "elsewhere.example") || strings.Contains(err.Error(), "Bearer") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(p.requests())+len(inLog(t, storage)) > 0 {
		t.Errorf("asked: %v, in the log: %v", p.requests(), inLog(t, storage))
	}
	_, err := s.Send(bedsql.RequireRows(t.Context(), 1), post(t, "/charges", "a"))
	if err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
		t.Errorf("RequireRows: %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestBaseURLIsChecked(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "payments", "ftp://a", "http://", "http://user:secret@a", "http://a?b=c", "http://a?", "http://a#b", "http://a/../b", "http://a//b", "http://\x7f"} {
		if _, err := call.New(http.DefaultClient, "payments", base, bedsql.Config{Storage: txlog.NewMemory()}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", base, err)
		}
	}
	if _, err := call.New(nil, "payments", "http://a", bedsql.Config{Storage: txlog.NewMemory()}); err == nil {
		t.Error("a nil client is taken")
	}
}

// token adds credentials, as an application's transport does.
type token struct{ http.RoundTripper }

func (t token) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer very-secret")
	return t.RoundTripper.RoundTrip(r)
}

// The words of a service may hold values of the call.
func TestWordsOfTheServiceReachNoLogLine(t *testing.T) {
	t.Parallel()
	for _, code := range []int{401, 402, 500} {
		p, storage := newPeer(t), txlog.NewMemory()
		logger, hook := logtest.NewNullLogger()
		s := newService(t, p, bedsql.Config{Storage: storage, Logger: logger, NoSyncRetry: true})
		p.answers(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"title": "card 4242"}`)
		})
		_, err := s.Send(t.Context(), post(t, "/charges", "4242"))
		if !strings.Contains(err.Error(), "card 4242") {
			t.Errorf("the caller is not told: %v", err)
		}
		round(t, storage, p, func(c *asyncjob.Config) { c.Logger, c.MaxDeliveryTryTimes = logger, 1 })
		for _, e := range hook.AllEntries() {
			if text, err := e.String(); err != nil || strings.Contains(text, "4242") {
				t.Errorf("%d: %s, %v", code, text, err)
			}
		}
	}
}

func TestCredentialsAreSentAndNeverLogged(t *testing.T) {
	t.Parallel()
	p, storage := newPeer(t), txlog.NewMemory()
	s, err := call.New(&http.Client{Transport: token{http.DefaultTransport}}, "payments", p.URL, bedsql.Config{Storage: storage, NoSyncRetry: true})
	must(t, err)
	defer s.Close()
	p.answers(lost)
	if _, err := s.Send(t.Context(), post(t, "/charges?card=4242", "a")); !errors.Is(err, bedsql.ErrPending) || strings.Contains(err.Error(), "4242") {
		t.Fatalf("Send: %v", err)
	}
	if got := p.requests()[0].header.Get("Authorization"); got != "Bearer very-secret" {
		t.Errorf("the credentials are %q", got)
	}
	u := inLog(t, storage)[0]
	if text := u.Statements[0].SQL + u.Statements[0].Params + u.LastError; strings.Contains(text, "very-secret") || strings.Contains(u.LastError, "4242") || strings.Contains(u.LastError, p.URL) {
		t.Errorf("the log holds %s", text)
	}
}
