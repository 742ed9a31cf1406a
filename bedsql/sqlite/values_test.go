package sqlite

import (
	"testing"
	"time"
)

func TestMonotonicClockIsNotKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	kept, err := sqliteDialect.Storable(now)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := kept.(time.Time)
	if !ok || !got.Equal(now) || got.String() != now.Round(0).String() {
		t.Errorf("%v is kept as %v", now, kept)
	}
}
