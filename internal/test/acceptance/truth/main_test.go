// Package truth tests the rule of truth: the error of a write tells what became of it.
package truth

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
