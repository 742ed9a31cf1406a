package bedsql_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/test/leaks"
)

func init() { besteffort.Strict = true }

// TestMain needs no exceptions: every test closes its pools, storages and subscriptions.
func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }
