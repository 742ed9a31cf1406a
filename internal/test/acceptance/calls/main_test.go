// Package calls tests calls of HTTP services.
package calls

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
