// Package tracers tests wrappers of drivers between the driver and bed.
package tracers

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
