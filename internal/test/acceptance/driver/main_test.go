// Package driver tests that a wrapped driver behaves as the bare one does.
package driver

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
