package ops

import (
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/entry"
)

// A tenant may be a person: its name is shown only with parameters, and masked in errors.
func TestValuesOfTheApplicationsSettingsAreMasked(t *testing.T) {
	t.Parallel()
	u := &entry.Unit{
		Session:   "@tenant='O''Hara%3B;app.tenant_id=Ann%3DLee;search_path=north;timezone=UTC",
		LastError: "ERROR: Ann=Lee and O''Hara; must not write to north (SQLSTATE P0001)",
	}
	if got := SessionOf(u, true); got != u.Session {
		t.Errorf("with values: %s", got)
	}
	if got := SessionOf(u, false); got != "@tenant=(not shown);app.tenant_id=(not shown);search_path=north;timezone=UTC" {
		t.Errorf("without values: %s", got)
	}
	if got := maskedError(u); strings.Contains(got, "Ann") || strings.Contains(got, "Hara") || !strings.Contains(got, "north") {
		t.Errorf("the error: %s", got)
	}
}
