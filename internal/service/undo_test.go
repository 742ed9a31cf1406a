package service

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/httpkey"
)

// Whatever a service answers to the question for its scope, there is a scope or an error.
func TestScopeIsNamedOrMissing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status   int
		header   map[string]string
		body     string
		scope    string
		operator bool
	}{
		"it may be undone":      {200, map[string]string{httpkey.Scope: "s", httpkey.MayUndo: httpkey.Yes}, "", "s", false},
		"it may not":            {200, map[string]string{httpkey.Scope: "s", httpkey.MayUndo: httpkey.No}, "", "", true},
		"a captive page":        {200, nil, "<html>", "", true},
		"no such path":          {404, nil, "", "", true},
		"too many questions":    {429, nil, "", "", false},
		"it is away":            {503, nil, "", "", false},
		"an answer of a call's": {500, map[string]string{httpkey.Scope: "s", "Content-Type": "application/problem+json"}, `{"type": "` + httpkey.Types + httpkey.ResponseLost + `"}`, "", false},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for name, value := range c.header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		t.Cleanup(srv.Close)
		s, err := Open(srv.Client(), srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := s.Target("payments").Connector.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		scope, err := peer.Scope(t.Context(), conn)
		if scope != c.scope || (err != nil) != (c.scope == "") || dialect.AdviceOf(err).Operator != c.operator || err != nil && err.Error() == "" {
			t.Errorf("%s: %q, %v", name, scope, err)
		}
	}
}
