// Package barrier tests groups whose parts are calls of another service, and calls that undo them.
package barrier

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
