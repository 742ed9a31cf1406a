package console

import (
	"testing"
)

func TestPagesAreAnswered(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	for _, p := range []string{"/", "/entries", "/entries/" + fakeID(1), "/entries/" + fakeID(1) + "/retry", "/bulk/retry?state=parked", "/data-sources/orders/limit", "/audit"} {
		w := get(t, c, p)
		if w.Code != 200 {
			t.Errorf("%s: %d %s", p, w.Code, w.Body)
		}
	}
}
