package bedhttp

import (
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
