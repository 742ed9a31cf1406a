package soak

import (
	"strings"
	"testing"
	"time"
)

func TestImplausibleDurationIsRefusedWithAnExample(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10", "fast", "-5ms", "0s", "1us"} {
		if d, err := durationOr(time.Second, text); err == nil || !strings.Contains(err.Error(), `"`+text+`" is not a duration of at least 1ms, such as 20ms`) {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	for text, want := range map[string]time.Duration{"": time.Second, "7ms": 7 * time.Millisecond, "1h": time.Hour} {
		if d, err := durationOr(time.Second, text); err != nil || d != want {
			t.Errorf("%q: %v, %v; want %v", text, d, err, want)
		}
	}
}
