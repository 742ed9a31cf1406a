package message

import (
	"fmt"
	"testing"
)

// Failures of messages that another process has handled since are not counted for ever.
func TestFailuresAreCountedThoughManyOthersWere(t *testing.T) {
	t.Parallel()
	var failed tally
	for i := range 2 * maxCounted {
		failed.count(fmt.Sprint("other-", i))
	}
	failed.count("m-1")
	if times, _ := failed.count("m-1"); times != 2 || len(failed.of) != maxCounted {
		t.Errorf("%d failures are counted, of %d messages", times, len(failed.of))
	}
}
