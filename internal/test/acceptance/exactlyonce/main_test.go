// Package exactlyonce tests that a unit is applied once, and its receipts.
package exactlyonce

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
