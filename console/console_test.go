package console

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/txlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

const listen = "127.0.0.1:8390"

// people are those of the tests: their passwords are their names and "-pw".
var people = func() []User {
	var all []User
	for name, role := range map[string]Role{"rita": Read, "otto": Operate, "vera": Reveal} {
		hash, err := bcrypt.GenerateFromPassword([]byte(name+"-pw"), bcrypt.MinCost)
		if err != nil {
			panic(err)
		}
		all = append(all, User{name, string(hash), role})
	}
	return all
}()

func tokenHash(token string) string {
	sum := hashOf(token)
	return hex.EncodeToString(sum[:])
}

var programs = []Token{{"grafana", tokenHash("read-token"), Read}, {"robot", tokenHash("operate-token"), Operate}, {"auditor", tokenHash("reveal-token"), Reveal}}

func quiet() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// open makes a console without log-ins.
func open(t *testing.T, s store) *Console {
	t.Helper()
	return made(t, s, Config{Listen: listen, Logger: quiet()})
}

func made(t *testing.T, s store, cfg Config) *Console {
	t.Helper()
	c, err := newOn(cfg, source{store: func() store { return s }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A request is one of the tests; the zero fields are those of a friendly browser.
type request struct {
	method, path, body string
	as                 string // name of a user, or "token <text>"
	header             map[string]string
	host               string
	from               string // the peer's address
}

func ask4(t *testing.T, h http.Handler, q request) *httptest.ResponseRecorder {
	t.Helper()
	if q.method == "" {
		q.method = "GET"
	}
	r := httptest.NewRequestWithContext(t.Context(), q.method, q.path, strings.NewReader(q.body))
	r.Host = listen
	r.RemoteAddr = "127.0.0.1:5555"
	if q.from != "" {
		r.RemoteAddr = q.from
	}
	if q.host != "" {
		r.Host = q.host
	}
	switch token, isToken := strings.CutPrefix(q.as, "token "); {
	case isToken:
		r.Header.Set("Authorization", "Bearer "+token)
	case q.as != "":
		r.SetBasicAuth(q.as, q.as+"-pw")
	}
	if q.body != "" {
		kind := "application/json"
		if !strings.Contains(q.path, "/api/") {
			kind = "application/x-www-form-urlencoded"
		}
		r.Header.Set("Content-Type", kind)
	}
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	return ask4(t, h, request{path: path})
}

func TestUnansweredDecisionIsNotShownAsFailed(t *testing.T) {
	t.Parallel()
	f := failureOf(fmt.Errorf("deciding units: %w: invalid connection", txlog.ErrUnconfirmed))
	if f.status != http.StatusServiceUnavailable || !strings.Contains(f.Error(), "not known") || strings.Contains(f.Error(), "invalid") {
		t.Errorf("got %d %v", f.status, f)
	}
}
