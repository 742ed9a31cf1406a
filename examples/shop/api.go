package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/listener/bedprom"
)

// api is the customers', over HTTP.
type api struct{ *orders }

// handler serves the API. Behind bedhttp, a request that a client sends twice under one
// Idempotency-Key is handled once and gets the same response twice.
func (x api) handler() (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", x.postOrder)
	mux.HandleFunc("PATCH /orders/{id}", x.patchOrder)
	mux.HandleFunc("POST /orders/{id}/ship", x.postShip)
	mux.HandleFunc("GET /orders/{id}", x.getOrder)
	keys, err := x.keys.DB()
	if err != nil {
		return nil, err
	}
	once, err := bedhttp.New(bedhttp.Config{Service: "shop", DB: keys, Client: customer, Required: true})
	if err != nil {
		return nil, err
	}
	mux.Handle("GET /metrics", bedprom.Handler(x.metrics))
	return once(mux), nil
}

// customer returns the owner of a request's key. A real shop has authentication in front of
// bedhttp, and takes the customer from there.
func customer(r *http.Request) string { return "customer-1" }

// orderID is the same for a key, however often the request is handled.
func orderID(r *http.Request) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(customer(r)+" "+bedhttp.Key(r.Context()))).String()
}

// postOrder answers once the order is certain to be decided. Its address shows the decision.
func (x api) postOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Article == "" || o.N < 1 {
		http.Error(w, `send {"article": "apple", "n": 3}`, http.StatusBadRequest)
		return
	}
	o.ID = orderID(r)
	err := x.rows.WithContext(r.Context()).First(&order{}, "id = ?", o.ID).Error
	if errors.Is(err, gorm.ErrRecordNotFound) {
		err = x.place(r.Context(), &o)
	}
	switch bedsql.OutcomeOf(err) {
	case bedsql.OutcomeDelivered, bedsql.OutcomeAccepted: // logged; the job delivers what is pending
		w.Header().Set("Location", "/orders/"+o.ID)
		reply(w, http.StatusAccepted, map[string]string{"id": o.ID})
	default:
		bedhttp.Error(w, r, err)
	}
}

// patchOrder changes the note of an order if the client has seen the newest version.
func (x api) patchOrder(w http.ResponseWriter, r *http.Request) {
	var to order
	if err := json.NewDecoder(r.Body).Decode(&to); err != nil {
		http.Error(w, `send {"version": 1, "note": "leave it at the door"}`, http.StatusBadRequest)
		return
	}
	x.changed(w, r, to.Version, x.change(r.Context(), r.PathValue("id"), to.Version, map[string]any{"note": to.Note}))
}

func (x api) postShip(w http.ResponseWriter, r *http.Request) {
	var seen order
	if err := json.NewDecoder(r.Body).Decode(&seen); err != nil {
		http.Error(w, `send {"version": 1}`, http.StatusBadRequest)
		return
	}
	x.changed(w, r, seen.Version, x.ship(r.Context(), r.PathValue("id"), seen.Version))
}

// changed answers 202 even after a delivery: some of it may still be on its way.
func (x api) changed(w http.ResponseWriter, r *http.Request, from int64, err error) {
	var other *bedsql.RowsError
	switch o := bedsql.OutcomeOf(err); {
	case errors.Is(err, gorm.ErrRecordNotFound):
		http.NotFound(w, r)
	case errors.As(err, &other):
		reply(w, http.StatusConflict, map[string]string{"error": "the order is not of that version, or no longer placed: read it again"})
	case errors.Is(err, errAgain):
		w.Header().Set("Retry-After", "1")
		reply(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
	case o == bedsql.OutcomeDelivered, o == bedsql.OutcomeAccepted: // logged; the job delivers what is pending
		reply(w, http.StatusAccepted, map[string]int64{"version": from + 1})
	default:
		bedhttp.Error(w, r, err)
	}
}

func (x api) getOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	switch err := x.rows.WithContext(r.Context()).First(&o, "id = ?", r.PathValue("id")).Error; {
	case errors.Is(err, gorm.ErrRecordNotFound):
		http.NotFound(w, r)
	case err != nil:
		http.Error(w, "the order cannot be read", http.StatusServiceUnavailable)
	default:
		reply(w, http.StatusOK, o)
	}
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// start serves the API at an address, until close, and has handle consume the events.
func (x *orders) start(ctx context.Context, addr string, handle bedmessage.Handler) (url string, err error) {
	handler, err := api{x}.handler()
	if err != nil {
		return "", err
	}
	at, err := x.listen(addr, handler)
	if err != nil {
		return "", err
	}
	return "http://" + at, x.consume(ctx, handle)
}
