package console_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/console"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// An application shows the console of its log below /bed, beside its own pages.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "bed-example")
	check(err)
	defer os.RemoveAll(dir)
	storage, err := txlog.Open(context.Background(), "sqlite", "file:"+dir+"/log.db")
	check(err)
	defer storage.Close()
	orders, err := sqlite.Target("file:" + dir + "/orders.db")
	check(err)

	c, err := console.New(storage, map[string]delivery.Target{"orders": orders}, console.Config{
		BasePath:     "/bed",
		AllowedHosts: []string{"shop.example"},
		// htpasswd -nbB ann and a password
		Users: []console.User{{Name: "ann", PasswordHash: "$2y$05$ERVq3TlvcrExbQRhd4X4B.0Ew6EoDDFmqdFY17zEs/Z6dOadz2t9e", Role: console.Operate}},
	})
	check(err)
	defer c.Close()
	mux := http.NewServeMux()
	mux.Handle("/bed/", c)

	response := httptest.NewRecorder()
	mux.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "http://shop.example/bed/", nil))
	fmt.Println(response.Code, response.Header().Get("WWW-Authenticate") != "")
	// Output: 401 true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
