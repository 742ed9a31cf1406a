// Package crash tests that nothing is lost when a writer, a job or a server dies.
package crash

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
