package entry

import (
	"testing"

	"github.com/google/uuid"
)

func TestIDsOfAUnitsRowsAreConsecutive(t *testing.T) {
	t.Parallel()
	head := NewID()
	if !IsHeadID(head) || HeadID(head) != head {
		t.Fatalf("%s is not an id of a first row", head)
	}
	last := ""
	for n := range MaxStatements {
		id := RowID(head, n)
		parsed, err := uuid.Parse(id)
		if err != nil || parsed.Version() != 7 || parsed.Variant() != uuid.RFC4122 || parsed.String() != id {
			t.Fatalf("row %d: %q is no UUIDv7 (%v)", n, id, err)
		}
		if id <= last || HeadID(id) != head || (n > 0 && IsHeadID(id)) {
			t.Fatalf("row %d: %s does not follow %s in unit %s", n, id, last, head)
		}
		last = id
	}
}

func TestIDsAreDifferentAndSortByTime(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	last := ""
	for range 10_000 {
		id := NewID()
		if seen[id] {
			t.Fatalf("%s was made twice", id)
		}
		if id <= last {
			t.Fatalf("%s sorts before %s", id, last)
		}
		seen[id] = true
		last = id
	}
}

func TestWhatIsNoIDBelongsToNoUnit(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "17", NewID() + "0", "zzzzzzzz-0000-7000-8000-000000000000", "0123456789012345678901234567890123000"[1:]} {
		if IsHeadID(HeadID(id)) {
			t.Errorf("%q is taken for an id", id)
		}
	}
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NewID()
	}
}
