// Package groups tests soft transactions: immediate, staged, and with compensation.
package groups

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
