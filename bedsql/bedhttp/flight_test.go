package bedhttp

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestNewKeysOfAClientAreCountedForAnHour(t *testing.T) {
	t.Parallel()
	var h hours
	now := time.Now()
	for i, want := range []bool{true, true, false} {
		if got := h.take("one", 2, now.Add(time.Duration(i)*time.Minute)); got != want {
			t.Errorf("key %d is taken: %v", i+1, got)
		}
	}
	if !h.take("another", 2, now) {
		t.Error("another client is bounded by the first one's keys")
	}
	if h.take("one", 2, now.Add(59*time.Minute)) || !h.take("one", 2, now.Add(time.Hour)) {
		t.Error("the bound does not end with the hour")
	}
}

func TestWaitingDuplicateHoldsTheFirstOnesBody(t *testing.T) {
	t.Parallel()
	body := []byte("one")
	f, _ := board(nil, t.Name(), "f", body)
	defer f.land(nil)
	x := &exchange{
		middleware: &middleware{Config: Config{Wait: time.Millisecond, Counters: new(Counters)}},
		w:          httptest.NewRecorder(), r: httptest.NewRequest(http.MethodPost, "/", nil),
		key: t.Name(), fingerprint: "f", body: bytes.Clone(body),
	}
	if x.run(); &x.body[0] != &body[0] {
		t.Error("it holds a body of its own")
	}
}

func TestRequestsOfAClientAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	var leave func()
	for n := range maxAtOnce {
		var ok bool
		if leave, ok = enter(nil, t.Name(), "one"); !ok {
			t.Fatalf("request %d finds no room", n+1)
		}
	}
	if _, ok := enter(nil, t.Name(), "one"); ok {
		t.Error("there is room for one more")
	}
	if _, ok := enter(nil, t.Name(), "another"); !ok {
		t.Error("another client finds no room")
	}
	leave()
	if _, ok := enter(nil, t.Name(), "one"); !ok {
		t.Error("the room of a request that has ended stays taken")
	}
}
