package bedhttp_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// account is the context key of the signed-in account.
type account struct{}

// signedIn stands in front of the middleware. It identifies the sender of a request and rejects
// unauthorized ones. A real one reads a session or a token.
func signedIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		if name != "alice" || password != "secret" {
			http.Error(w, "sign in", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), account{}, name)))
	})
}

// orders opens a database with the table orders.
func orders() (db *sql.DB, closing func()) {
	dir, err := os.MkdirTemp("", "bedhttp-example")
	check(err)
	storage, err := txlog.Open(context.Background(), "sqlite", "file:"+filepath.Join(dir, "log.db"))
	check(err)
	check(sqlite.Register("bedhttp-example", bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce}))
	db, err = sql.Open("bedhttp-example", "file:"+filepath.Join(dir, "orders.db")+"?bedDataSource=orders")
	check(err)
	_, err = db.Exec(`CREATE TABLE orders (id INTEGER PRIMARY KEY, article TEXT)`)
	check(err)
	return db, func() {
		check(db.Close())
		check(storage.Close())
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A client without an answer sends its request again. There is one order, and the second answer is
// the first one.
func Example() {
	db, closing := orders()
	defer closing()

	keyed, err := bedhttp.New(bedhttp.Config{
		DB:      db,
		Service: "orders",
		Client: func(r *http.Request) string { // who has signed in, not what a header says
			name, _ := r.Context().Value(account{}).(string)
			return name
		},
		Required: true,
	})
	check(err)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", signedIn(keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), `INSERT INTO orders (article) VALUES (?)`, r.FormValue("article"))
		if err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		id, err := res.LastInsertId() // PostgreSQL: RETURNING
		if err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		w.Header().Set("Location", fmt.Sprintf("/orders/%d", id))
		w.WriteHeader(http.StatusCreated)
	}))))

	for _, article := range []string{"apple", "apple", "pear"} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("article="+article))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(article, w.Code, "replayed:", w.Header().Get("Idempotent-Replayed") == "true", w.Header().Get("Location"))
	}
	// Output:
	// apple 201 replayed: false /orders/1
	// apple 201 replayed: true /orders/1
	// pear 422 replayed: false
}
