package txlog_test

import (
	"database/sql/driver"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

func berlin(t testing.TB) *time.Location {
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func TestTimeComesBackLocalWithoutMonotonicPart(t *testing.T) {
	t.Parallel()
	now := time.Now()
	text, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: now}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := entry.DecodeParams(text)
	if err != nil {
		t.Fatal(err)
	}
	back, ok := got[0].Value.(time.Time)
	if !ok || !back.Equal(now) || back.String() != now.Round(0).String() {
		t.Errorf("got %v, want %v", got[0].Value, now)
	}
}

// A zone named Local on its machine is known elsewhere only by its abbreviation.
func TestLocalZoneIsKeptByItsAbbreviation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2024-01-01T14:00:00+01:00 CET":        "2024-01-01 14:00:00 +0100 CET",
		"2024-01-01T14:00:00+01:00 MET":        "2024-01-01 14:00:00 +0100 MET",
		"2024-07-01T14:00:00+02:00 CEST":       "2024-07-01 14:00:00 +0200 CEST",
		"2024-07-01T14:00:00+11:11 Local CEST": "2024-07-01 14:00:00 +1111 CEST",
		"2024-07-01T14:00:00+11:11 Local":      "2024-07-01 14:00:00 +1111 +1111", // of an earlier version
	} {
		got, err := entry.DecodeParams(`[{"time":"` + text + `"}]`)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if s := got[0].Value.(time.Time).String(); s != want {
			t.Errorf("%s: got %s, want %s", text, s, want)
		}
	}
	at := time.Date(2024, 7, 1, 14, 0, 0, 0, testdb.LocalZone(t, "CET", 2*time.Hour))
	if text, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: at}}); err != nil || text != `[{"time":"2024-07-01T14:00:00+02:00 Local CET"}]` {
		t.Errorf("it is written as %s, %v", text, err)
	}
}

func TestUnknownZoneBecomesAFixedOne(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2024-05-01T14:00:00+02:00 Mars/Olympus":  "2024-05-01 14:00:00 +0200 Mars/Olympus",
		"2024-05-01T14:00:00+03:00 Europe/Berlin": "2024-05-01 14:00:00 +0300 Europe/Berlin",
		"2024-10-27T02:30:00+02:00 Europe/Berlin": "2024-10-27 02:30:00 +0200 CEST",
		"2024-10-27T02:30:00+01:00 Europe/Berlin": "2024-10-27 02:30:00 +0100 CET",
	} {
		got, err := entry.DecodeParams(`[{"time":"` + text + `"}]`)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if s := got[0].Value.(time.Time).String(); s != want {
			t.Errorf("%s: got %s, want %s", text, s, want)
		}
	}
}
