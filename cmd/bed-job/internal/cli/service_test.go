package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// newSecuredHTTP is a service that answers only clients with a certificate.
func newSecuredHTTP(t *testing.T, ca, cert, key string) (dsn string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.SetKeepAlivesEnabled(false) // each request has a connection of its own
	s.TLS = wantsCertificates(t, ca, cert, key)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// payments is a service behind keys. It takes a token, and counts what it handles by key.
type payments struct {
	*httptest.Server
	mu      sync.Mutex
	token   string
	status  int
	stuck   chan struct{} // if not nil, it answers nothing
	handled map[string]int
	last    *http.Request
	body    string
}

func newPayments(t *testing.T) *payments {
	t.Helper()
	p := &payments{status: http.StatusCreated, handled: map[string]int{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// is changes it.
func (p *payments) is(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.Method == http.MethodHead: // anybody may ask whether it is there
		return
	case p.token != "" && r.Header.Get("Authorization") != "Bearer "+p.token:
		w.WriteHeader(http.StatusUnauthorized) // by what stands before it
		return
	case p.stuck != nil:
		stuck := p.stuck
		p.mu.Unlock()
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
		p.mu.Lock()
		return
	}
	p.last, p.body = r, string(body)
	w.Header().Set("Idempotency-Scope", "test")
	if p.status >= 300 {
		w.Header().Set("Idempotency-Kept", "?1")
	} else {
		p.handled[r.Header.Get("Idempotency-Key")]++
	}
	w.WriteHeader(p.status)
}

// promised leaves calls of a service to the job, and returns their entries.
func promised(t *testing.T, db testdb.DB, paths ...string) (ids []string) {
	t.Helper()
	storage, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer storage.Close()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	s, err := call.New(http.DefaultClient, "payments", "http://127.0.0.1:1", bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce, NoSyncRetry: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, path := range paths {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"card": "s3cr3t card"}`))
		if err != nil {
			t.Fatal(err)
		}
		var pending *bedsql.PendingError
		if _, err := s.Send(t.Context(), r); !errors.As(err, &pending) {
			t.Fatal(err)
		}
		ids = append(ids, pending.EntryID)
	}
	return ids
}

// desk runs bed-job over a log and a service.
type serviceDesk struct {
	t    *testing.T
	log  testdb.DB
	file string
}

func newServiceDesk(t *testing.T) *serviceDesk {
	return &serviceDesk{t, testdb.SQLite(t), filepath.Join(t.TempDir(), "bed-job.yaml")}
}

// installs writes the configuration with more keys of the service.
func (d *serviceDesk) installs(dsn, keys string) {
	d.t.Helper()
	write(d.t, d.file, fmt.Sprintf("targetDataSource:\n  payments: {driver: http, dsn: %q%s}\ntransactionLogDataSource: {driver: sqlite, dsn: %q}\n"+
		"jobConfig: {maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, unknownDataSourceDelayMillis: 1, maxDeliveryTryTimes: 1, probeTimeoutMillis: 60000}\n", dsn, keys, d.log.DSN))
}

func (d *serviceDesk) run(want int, says string, args ...string) string {
	d.t.Helper()
	var out bytes.Buffer
	a := app{Getenv: env(nil), Open: openLog, In: strings.NewReader(""), Out: &out, Err: &out, Now: time.Now}
	if status := a.run(d.t.Context(), append(args, "-c", d.file)); status != want || !strings.Contains(out.String(), says) {
		d.t.Errorf("%v ends with status %d, want %d and %q:\n%s", args, status, want, says, out.String())
	}
	return out.String()
}

// Operators can do to calls what they do to other entries, except trying them.
func TestOperatorsSeeAmendAndSendCalls(t *testing.T) {
	t.Parallel()
	p, d := newPayments(t), newServiceDesk(t)
	d.installs(p.URL+"/v1", "")
	ids := promised(t, d.log, "/orders/4711/charges?card=s3cr3t", "/orders/4712/charges")
	id := ids[0]
	if all := d.run(0, "CALL POST /orders/", "list") + d.run(0, "CALL POST /orders/", "show", id); strings.Contains(all, "s3cr3t") {
		t.Errorf("a value is shown unasked:\n%s", all)
	}
	d.run(0, "s3cr3t card", "show", id, "--show-parameters")
	d.run(1, "is no database", "try", id)
	d.run(0, "0 kinds of refusal", "rehearse")
	p.is(func() { p.status = http.StatusPaymentRequired })
	d.run(0, "parked 2", "run", "--once")
	if kinds := d.run(0, "402 Payment Required", "kinds"); strings.Count(kinds, "--kind") != 1 || !strings.Contains(kinds, "\n2 ") {
		t.Errorf("calls with other ids in their paths are another kind:\n%s", kinds)
	}
	var shown struct {
		Statements []struct {
			TypedParameters string
		}
	}
	if err := json.Unmarshal([]byte(d.run(0, "", "show", id, "--show-parameters", "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	params := shown.Statements[0].TypedParameters
	for says, changed := range map[string]string{
		"stay as they are": strings.Replace(params, id, "another", 1),
		"no parameter":     strings.Replace(params, `"body"`, `"payload"`, 1),
	} {
		d.run(1, says, "amend", id, "--parameters", changed, "--reason", "a mistake", "--yes")
	}
	d.run(1, "stay as they are", "amend", id, "--sql", "CALL POST /refunds", "--reason", "a mistake", "--yes")
	d.run(0, id, "amend", id, "--parameters", strings.ReplaceAll(params, "s3cr3t card", "other card"), "--reason", "the card was wrong", "--yes")
	old := p.last.Header.Get("Idempotency-Key")
	p.is(func() { p.status = http.StatusCreated })
	d.run(0, "", "retry", id, "--reason", "the card is right now")
	d.run(0, "delivered 1", "run", "--once")
	if p.body != `{"card": "other card"}` || p.last.URL.RequestURI() != "/v1/orders/4711/charges?card=s3cr3t" || p.last.Header.Get("Idempotency-Key") == old || len(p.handled) != 1 {
		t.Errorf("the service got %s %s, handled %v", p.last.URL, p.body, p.handled)
	}
	write(t, d.file, fmt.Sprintf("targetDataSource:\n  payments: {driver: http, dsn: %q}\ntransactionLogDataSource: {driver: http, dsn: %q}\n", p.URL, p.URL))
	d.run(1, "unknown driver, it must be mysql, postgres, sqlite", "list")
}

// Each call has the headers of the configuration and the token of the file, read anew.
func TestCallsCarryConfiguredHeaders(t *testing.T) {
	t.Parallel()
	p, d := newPayments(t), newServiceDesk(t)
	token, tenant := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "tenant")
	d.installs(p.URL, fmt.Sprintf(", headers: {x-region: eu}, headerFiles: {X-Tenant: %q}, passwordFile: %q", tenant, token))
	promised(t, d.log, "/charges")
	d.run(1, "headerFiles X-Tenant: open "+tenant+": no such file", "run", "--once")
	write(t, tenant, "two\nlines\n")
	d.run(1, "headerFiles X-Tenant: it does not hold one line", "run", "--once")
	write(t, tenant, "acme\n")
	write(t, token, "s3cr3t-old\n")
	p.is(func() { p.token = "s3cr3t-new" })
	for range 3 { // a single try would park it
		if out := d.run(1, "pushed back 1", "run", "--once"); !strings.Contains(out, "401") || strings.Contains(out, "s3cr3t") {
			t.Errorf("with an expired token:\n%s", out)
		}
	}
	write(t, token, "s3cr3t-new\n")
	d.run(0, "delivered 1", "run", "--once")
	for name, want := range map[string]string{"X-Region": "eu", "X-Tenant": "acme", "Authorization": "Bearer s3cr3t-new"} {
		if got := p.last.Header.Get(name); got != want {
			t.Errorf("the header %s is %q, want %q", name, got, want)
		}
	}
}

func TestTimeoutOfAServiceBoundsACall(t *testing.T) {
	t.Parallel()
	p, d := newPayments(t), newServiceDesk(t)
	d.installs(p.URL, ", timeoutMillis: 3000")
	promised(t, d.log, "/charges")
	stuck := make(chan struct{})
	defer close(stuck)
	p.is(func() { p.stuck = stuck })
	began := time.Now()
	d.run(0, "parked 1", "run", "--once") // the single try may have been applied
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a call without an answer took %v", took)
	}
	d.run(0, `"inDoubt": true`, "list", "-o", "json")
}

// The token of a service changes under load, and the job learns of it late: no call is refused or
// lost, and none is handled twice.
func TestTokenRotationUnderLoadRefusesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		p := newPayments(t)
		file := filepath.Join(t.TempDir(), "token")
		var n atomic.Int64
		rotate := func() (publish func()) {
			next := fmt.Sprintf("s3cr3t-%d", n.Add(1))
			p.is(func() { p.token = next })
			return func() {
				write(t, file+".new", next+"\n")
				if err := os.Rename(file+".new", file); err != nil {
					t.Error(err)
				}
			}
		}
		rotate()()
		db = testdb.NewLog(t, db.Driver)
		storage, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer storage.Close()
		config := filepath.Join(t.TempDir(), "bed-job.yaml")
		write(t, config, fmt.Sprintf("targetDataSource:\n  payments: {driver: http, dsn: %q, passwordFile: %q}\ntransactionLogDataSource: {driver: %s, dsn: %q}\n"+
			`jobConfig: {cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 100, unknownDataSourceDelayMillis: 50, maxDeliveryTryTimes: 1}`+"\n", p.URL, file, db.Driver, db.DSN))
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		job := app{Getenv: env(nil), Now: time.Now, Open: openLog, Out: io.Discard, Err: &out, In: strings.NewReader("")}
		ended := make(chan int, 1)
		go func() { ended <- job.run(ctx, []string{"run", "-c", config}) }()
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		client := &http.Client{Transport: bearer{file}}
		s, err := call.New(client, "payments", p.URL, bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		outcomes := map[bedsql.Outcome]int{}
		send := func() bedsql.Outcome {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", strings.NewReader("1"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Send(t.Context(), r)
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("a token is in an error: %v", err)
			}
			o := bedsql.OutcomeOf(err)
			outcomes[o]++
			return o
		}
		for range 10 {
			for range 5 {
				if o := send(); o != bedsql.OutcomeDelivered {
					t.Errorf("with the token a call is %v", o)
				}
			}
			publish := rotate()
			for range 5 {
				if o := send(); o != bedsql.OutcomeAccepted {
					t.Errorf("with the old token a call is %v", o)
				}
			}
			publish()
		}
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			left, err := storage.List(t.Context(), txlog.Filter{})
			if err == nil && len(left) == 0 {
				break
			}
			for _, u := range left {
				if u.Parked || u.Tries > 0 {
					t.Fatalf("parked %v after %d tries: %s", u.Parked, u.Tries, u.LastError)
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d entries are left, %v", len(left), err)
			}
		}
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("the job ends with status %d", status)
		}
		if text := out.String(); strings.Contains(text, "s3cr3t") {
			t.Errorf("a token is in the job's output:\n%s", text)
		}
		for key, times := range p.handled {
			if times != 1 {
				t.Errorf("the call %s was handled %d times", key, times)
			}
		}
		if len(p.handled) != 100 {
			t.Errorf("%d calls were handled, want 100; outcomes %v", len(p.handled), outcomes)
		}
	})
}

// bearer adds the token of a file.
type bearer struct{ file string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(b.file)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return http.DefaultTransport.RoundTrip(r)
}

func TestDoctorExaminesServices(t *testing.T) {
	t.Parallel()
	p, d := newPayments(t), newServiceDesk(t)
	promised(t, d.log, "/charges")
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "s3cr3t-token\n")
	d.installs(p.URL, fmt.Sprintf(", passwordFile: %q", token))
	d.run(0, "nothing found", "doctor")
	d.run(0, "Idempotency-Key", "doctor")
	address := p.URL
	d.installs("http://payments.invalid", fmt.Sprintf(", passwordFile: %q", token))
	if out := d.run(1, "without TLS", "doctor"); strings.Contains(out, "s3cr3t") {
		t.Errorf("a token is in the report:\n%s", out)
	}
	d.installs("http://payments.invalid", ", headers: {Authorization: s3cr3t-token}")
	if out := d.run(1, "without TLS", "doctor"); strings.Contains(out, "s3cr3t") {
		t.Errorf("a token is in the report:\n%s", out)
	}
	p.Close()
	d.installs(address, "")
	d.run(1, "reach", "doctor")
	tlsPeer := httptest.NewUnstartedServer(http.NotFoundHandler())
	tlsPeer.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsPeer.StartTLS()
	defer tlsPeer.Close()
	d.installs(tlsPeer.URL, "")
	d.run(1, "certificate", "doctor")
}
