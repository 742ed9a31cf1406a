package bedhttp

import (
	"database/sql"
	"maps"
	"sync"
	"time"
)

// flights are the current requests of this process. Their duplicates wait here, and need no
// connection.
var flights sync.Map // *flight by flightKey

type flightKey struct {
	db  *sql.DB
	key string
}

// flight is one request under a key, shared by all its duplicates.
type flight struct {
	flightKey
	fingerprint string // or undoing
	// body is the leader's. Duplicates drop theirs while they wait: it is the same.
	body []byte
	// landed is closed at the end. response is then nil if nothing was committed, or the outcome
	// is unknown.
	landed   chan struct{}
	response *response
}

// undoing stands for the fingerprint in the flight of an undo over the key that it undoes.
const undoing = ""

// board returns the flight under a key. leads is true for the first caller, who handles the
// request.
func board(db *sql.DB, key, fingerprint string, body []byte) (f *flight, leads bool) {
	at := flightKey{db, key}
	first, there := flights.LoadOrStore(at, &flight{flightKey: at, fingerprint: fingerprint, body: body, landed: make(chan struct{})})
	return first.(*flight), !there
}

// land ends a flight with the kept response; the first call counts.
func (f *flight) land(kept *response) {
	if flights.CompareAndDelete(f.flightKey, f) {
		f.response = kept
		close(f.landed)
	}
}

// maxAtOnce is how many requests of one client a process handles, waiting ones included. Other
// clients need room, too.
const maxAtOnce = 1024

// present counts the current and waiting requests with a key, by client.
var present = struct {
	mu sync.Mutex
	of map[scope]int
}{of: map[scope]int{}}

type scope struct {
	db              *sql.DB
	service, client string
}

// enter finds room for a request of a client.
func enter(db *sql.DB, service, client string) (leave func(), ok bool) {
	at := scope{db, service, client}
	present.mu.Lock()
	defer present.mu.Unlock()
	if present.of[at] >= maxAtOnce {
		return nil, false
	}
	present.of[at]++
	return func() {
		present.mu.Lock()
		defer present.mu.Unlock()
		if present.of[at]--; present.of[at] == 0 {
			delete(present.of, at)
		}
	}, true
}

// hours counts the new keys of clients, each within an hour from its first one.
type hours struct {
	mu sync.Mutex
	of map[string]*hour
}

type hour struct {
	since time.Time
	keys  int
}

// take counts a new key of a client. It returns false if the client has had limit within the hour.
func (h *hours) take(client string, limit int, now time.Time) bool {
	over := func(_ string, of *hour) bool { return now.Sub(of.since) >= time.Hour }
	h.mu.Lock()
	defer h.mu.Unlock()
	of := h.of[client]
	if of == nil || over(client, of) {
		if len(h.of)%1024 == 0 { // clients come and go
			maps.DeleteFunc(h.of, over)
		}
		if of = (&hour{since: now}); h.of == nil {
			h.of = map[string]*hour{}
		}
		h.of[client] = of
	}
	if of.keys >= limit {
		return false
	}
	of.keys++
	return true
}
