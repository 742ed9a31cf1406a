package requests

import (
	"io"
	"net/http"
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func wantsRunsOnce(s *rig.Service) {
	s.T.Helper()
	if n := s.Runs.Load(); n != 1 {
		s.T.Errorf("the handler has run %d times, want once", n)
	}
}

// paysAnd answers after that.
func paysAnd(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if rig.Pays(w, r) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
}

// makesReceipts makes the table of receipts; a service would time out waiting for that.
func makesReceipts(r *rig.Rig) {
	r.T.Helper()
	s := rig.NewService(r.T, r, func(http.ResponseWriter, *http.Request) {})
	s.Wants(s.Asks("receipts", "{}"), 200, false)
}

// eachHome runs f on a rig of each kind, with one account.
func eachHome(t *testing.T, f func(t *testing.T, r *rig.Rig)) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		f(t, r)
	})
}
