package bedsql_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
)

// TestMain needs no exceptions: every pool, storage and subscription that a
// test opens is closed by it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }
