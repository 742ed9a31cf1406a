// Package requests tests HTTP requests with an Idempotency-Key.
package requests

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
