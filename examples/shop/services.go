package main

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"os"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/txlog"
)

// The rows of the stock and the payments service, which are also their requests. A released or
// refunded row stays, for the books.
type (
	article struct { // how many there are in stock
		Name string `gorm:"primaryKey;size:40" json:"name"`
		N    int64  `json:"n"`
	}
	reservation struct {
		OrderID  string `gorm:"primaryKey;size:36" json:"order"`
		Article  string `gorm:"size:40" json:"article"`
		N        int64  `json:"n"`
		Released bool   `json:"released"`
	}
	charge struct {
		OrderID  string `gorm:"primaryKey;size:36" json:"order"`
		Cents    int64  `json:"cents"`
		Refunded bool   `json:"refunded"`
	}
)

// limit is what a customer's card pays at once, in cents.
const limit = 500

var errDeclined = errors.New("the card is declined")

// stocked is the stock of a new shop. The plums are for the load.
var stocked = []article{{"apple", 10}, {"pear", 2}, {"plum", 1_000_000}}

// other is the stock or the payments service.
type other struct {
	resources
	handler http.Handler
}

func openOther(ctx context.Context, s settings, name string) (_ *other, err error) {
	o := &other{}
	defer func() {
		if err != nil {
			_ = o.close()
		}
	}()
	// The requests write in their own transaction alone, and need no log.
	cfg := bedsql.Config{Storage: txlog.NewMemory(), Guarantee: bedsql.ExactlyOnce}
	mux := http.NewServeMux()
	var db *gorm.DB
	if name == "stock" {
		if db, err = o.database("stock", driverOf(s.Stock, "mysql"), s.Stock, cfg, &article{}, &reservation{}); err != nil {
			return nil, err
		}
		if err := db.WithContext(bedsql.Unlogged(ctx)).Clauses(clause.OnConflict{DoNothing: true}).Create(stocked).Error; err != nil {
			return nil, err
		}
		mux.Handle("POST /reservations", changes(db, reserve))
		mux.Handle("POST /releases", changes(db, release))
	} else {
		if db, err = o.database("payments", driverOf(s.Payments, "postgres"), s.Payments, cfg, &charge{}); err != nil {
			return nil, err
		}
		mux.Handle("POST /charges", changes(db, pay))
		mux.Handle("POST /refunds", changes(db, refund))
	}
	o.handler, err = behind(db, name, s.Token, mux)
	return o, err
}

func reserve(tx *gorm.DB, r *reservation) error {
	if err := tx.Exec("UPDATE articles SET n = n - ? WHERE name = ? AND n >= ?", r.N, r.Article, r.N).Error; err != nil {
		return err
	}
	return tx.Create(r).Error
}

// release undoes reserve. bedhttp calls it once, and only after a reserve that committed.
func release(tx *gorm.DB, r *reservation) error {
	if err := tx.Model(r).Update("released", true).Error; err != nil {
		return err
	}
	return tx.Exec("UPDATE articles SET n = n + ? WHERE name = ?", r.N, r.Article).Error
}

func pay(tx *gorm.DB, c *charge) error {
	if c.Cents > limit {
		return errDeclined
	}
	return tx.Create(c).Error
}

func refund(tx *gorm.DB, c *charge) error { return tx.Model(c).Update("refunded", true).Error }

// changes handles a request in the transaction of its key. Each statement must change one row.
func changes[T any](db *gorm.DB, change func(tx *gorm.DB, to *T) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var to T
		if err := json.NewDecoder(r.Body).Decode(&to); err != nil {
			http.Error(w, "the body is not the JSON of this request", http.StatusBadRequest)
			return
		}
		ctx := bedsql.RequireRows(r.Context(), 1)
		switch err := change(within(db, ctx, bedhttp.Tx(ctx)), &to); {
		case errors.Is(err, errDeclined): // a 4xx refuses the call, and the caller compensates
			http.Error(w, err.Error(), http.StatusPaymentRequired)
		case err != nil:
			bedhttp.Error(w, r, err)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	})
}

// behind puts the service behind bedhttp, and both behind authentication: a request that the service
// does not know is answered 401 before its key is looked at.
func behind(db *gorm.DB, name, token string, calls http.Handler) (http.Handler, error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	cfg := bedhttp.Config{
		Service: name, DB: pool, Required: true,
		Client: func(*http.Request) string { return "orders" }, // the token is its alone
		Undo:   func(*http.Request) bool { return true },
	}
	once, err := bedhttp.New(cfg)
	if err != nil {
		return nil, err
	}
	scope, err := bedhttp.Scope(cfg)
	if err != nil {
		return nil, err
	}
	crash := os.Getenv("SHOP_CRASH")
	mux := http.NewServeMux()
	mux.Handle("GET /idempotency-scope", scope) // the caller asks before its first compensation
	mux.Handle("POST /", dies(crash == afterCommit, once(dies(crash == beforeCommit, calls))))
	mux.HandleFunc("GET /books", func(w http.ResponseWriter, r *http.Request) {
		var b books
		var err error
		db := db.WithContext(r.Context())
		if name == "stock" {
			err = errors.Join(db.Order("name").Find(&b.Articles).Error, db.Find(&b.Reservations).Error)
		} else {
			err = db.Find(&b.Charges).Error
		}
		if err != nil {
			http.Error(w, "the books cannot be read", http.StatusServiceUnavailable)
			return
		}
		reply(w, http.StatusOK, b)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) == 0 {
			http.Error(w, "the token is unknown or has expired", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}
