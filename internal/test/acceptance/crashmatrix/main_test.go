// Package crashmatrix kills a process at each step of the protocol.
package crashmatrix

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
