package dialects

import (
	"testing"
	"time"
)

func TestAZoneIsNamedByWhatItIs(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	old := time.Local
	t.Cleanup(func() { time.Local = old })
	for _, c := range []struct {
		local *time.Location
		tz    string
		loc   *time.Location
		want  string
	}{
		{time.UTC, "", nil, "UTC"},
		{time.UTC, "", time.UTC, "UTC"},
		{time.UTC, "", tokyo, "Asia/Tokyo"},
		{tokyo, "Asia/Tokyo", nil, "UTC"},
	} {
		time.Local = c.local
		t.Setenv("TZ", c.tz)
		if got := ZoneName(c.loc); got != c.want {
			t.Errorf("%v is named %q, want %q", c.loc, got, c.want)
		}
	}

	// A zone of no known name is recognized by its offsets.
	time.Local = time.FixedZone("Local", 5400)
	t.Setenv("TZ", "Asia/Tokyo") // set after the process began: not believed
	if got, want := ZoneName(time.Local), "Local(+01:30,+01:30)"; got != want {
		t.Errorf("the local zone is named %q, want %q", got, want)
	}
	time.Local = tokyo
	if got := ZoneName(time.Local); got != "Asia/Tokyo" {
		t.Errorf("the local zone is named %q", got)
	}
}
