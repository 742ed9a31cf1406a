package call_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// An order takes from the stock and charges the customer by another service, or does neither.
func Example() {
	ctx := context.Background()
	storage, stock, ledger, closing := databases(ctx)
	defer closing()
	server := httptest.NewServer(payments(ledger))
	defer server.Close()

	cfg := bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce} // the service is behind bedhttp
	service, err := call.New(http.DefaultClient, "payments", server.URL, cfg)
	check(err)
	defer service.Close()

	for _, n := range []int{3, 9, 6} { // of ten apples
		ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
		check(err)
		undo := soft.Compensation(ctx)
		_, err = stock.ExecContext(bedsql.RequireRows(ctx, 1), `UPDATE stock SET n = n - ? WHERE n >= ?`, n, n)
		check(err)
		_, err = stock.ExecContext(undo, `UPDATE stock SET n = n + ?`, n)
		check(err)
		charge, err := service.Send(ctx, pay("/charges", n))
		check(err)
		_, err = service.Send(undo, pay("/refunds", n)) // runs only if the charge was applied
		check(err)

		err = soft.End(context.Background()) // sends the charge
		status, _ := charge.Status()
		fmt.Println(n, "apples:", bedsql.OutcomeOf(err), status)
		fmt.Println("  in stock", number(stock, `SELECT n FROM stock`), "paid", number(ledger, `SELECT n FROM paid`))
	}
	// Output:
	// 3 apples: delivered 201
	//   in stock 7 paid 3
	// 9 apples: compensated 0
	//   in stock 7 paid 3
	// 6 apples: compensated 0
	//   in stock 7 paid 3
}

// payments is another service. Under Undo it lets its callers undo their own requests, and tells them
// so at /idempotency-scope.
func payments(ledger *sql.DB) http.Handler {
	cfg := bedhttp.Config{
		DB: ledger, Service: "payments", Required: true,
		Client: func(*http.Request) string { return "shop" }, // by authentication
		Undo:   func(*http.Request) bool { return true },
	}
	once, err := bedhttp.New(cfg)
	check(err)
	scope, err := bedhttp.Scope(cfg)
	check(err)
	change := func(sign string) http.Handler {
		return once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("n") == "6" && sign == "+" {
				http.Error(w, "the card is declined", http.StatusPaymentRequired)
				return
			}
			if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), `UPDATE paid SET n = n `+sign+` ?`, r.FormValue("n")); err != nil {
				bedhttp.Error(w, r, err)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /idempotency-scope", scope)
	mux.Handle("POST /charges", change("+"))
	mux.Handle("POST /refunds", change("-"))
	return mux
}

// pay is a request for Send: its path is below the service's base URL.
func pay(path string, n int) *http.Request {
	r, err := http.NewRequest(http.MethodPost, path, strings.NewReader(fmt.Sprintf("n=%d", n)))
	check(err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// databases opens a log and the databases of both services by bed. Each service has a log of its own;
// here that of the payments keeps nothing.
func databases(ctx context.Context) (storage txlog.Storage, stock, ledger *sql.DB, closing func()) {
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	file := func(name string) string { return "file:" + filepath.Join(dir, name+".db") }
	open := func(name string, log txlog.Storage, rows string) *sql.DB {
		target, err := sqlite.Target(file(name))
		check(err)
		target.DataSource = name
		connector, err := bedsql.NewConnector(target, bedsql.Config{Storage: log, Guarantee: bedsql.ExactlyOnce})
		check(err)
		db := sql.OpenDB(connector)
		_, err = db.ExecContext(ctx, rows)
		check(err)
		return db
	}
	storage, err = txlog.Open(ctx, "sqlite", file("log"))
	check(err)
	stock = open("stock", storage, `CREATE TABLE stock AS SELECT 10 AS n`)
	ledger = open("ledger", txlog.NewMemory(), `CREATE TABLE paid AS SELECT 0 AS n`)
	return storage, stock, ledger, func() {
		_, _ = stock.Close(), ledger.Close()
		_ = storage.Close()
		_ = os.RemoveAll(dir)
	}
}

func number(db *sql.DB, query string) (n int) {
	check(db.QueryRow(query).Scan(&n))
	return n
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
