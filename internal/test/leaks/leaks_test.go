package leaks

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Patient(m)) }

// It outlasts the tests, and goleak's own wait.
func TestGoroutineThatEndsIsNoLeak(t *testing.T) {
	go time.Sleep(2 * time.Second)
}
