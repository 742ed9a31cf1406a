// Package withtx tests entries in the caller's own transaction.
package withtx

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
