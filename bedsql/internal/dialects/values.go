package dialects

import (
	"database/sql/driver"
	"path/filepath"
	"reflect"
	"strings"
	"time"
)

// ZoneName names loc so that two processes give it the same name only if it is the
// same ("Local" alone would not say which): an IANA name, "UTC" (for nil too), or,
// for a local zone whose name cannot be found out, its offsets in winter and summer.
func ZoneName(loc *time.Location) string {
	if loc == nil {
		return "UTC"
	}
	offsets := func(of *time.Location) string {
		at := func(m time.Month) string { return time.Date(2024, m, 15, 12, 0, 0, 0, of).Format("-07:00") }
		return at(time.January) + "," + at(time.July)
	}
	name := loc.String()
	if name == "Local" { // as a rule read from /etc/localtime, which leads to the zone's file
		name, _ = filepath.EvalSymlinks("/etc/localtime")
	}
	if filepath.IsAbs(name) {
		_, name, _ = strings.Cut(name, "/zoneinfo/")
		if named, err := time.LoadLocation(name); err != nil || offsets(named) != offsets(loc) {
			name = ""
		}
	}
	switch name {
	case "UTC", "Etc/UTC", "Etc/UCT", "UCT", "Universal", "Zulu", "Etc/Universal", "Etc/Zulu":
		return "UTC"
	case "":
		return "Local(" + offsets(loc) + ")"
	}
	return name
}

// Value gives what a Valuer stands for. A nil pointer panics in a Value method of its
// element type: database/sql and the drivers take such a pointer for NULL.
func Value(v driver.Valuer) (driver.Value, error) {
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Pointer && rv.IsNil() && rv.Type().Elem().Implements(reflect.TypeFor[driver.Valuer]()) {
		return nil, nil
	}
	return v.Value()
}
