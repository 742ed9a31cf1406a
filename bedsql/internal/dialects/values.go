package dialects

import (
	"database/sql/driver"
	"path/filepath"
	"reflect"
	"strings"
	"time"
)

// ZoneName returns a name for loc that two processes share only for the same zone ("Local"
// alone would be ambiguous): an IANA name, or "UTC" (for nil too). A local zone without a
// known name is named by its offsets in winter and summer.
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

// Value returns the value of a Valuer. A nil pointer would panic in a Value method of its
// element type: like database/sql and the drivers, Value treats it as NULL.
func Value(v driver.Valuer) (driver.Value, error) {
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Pointer && rv.IsNil() && rv.Type().Elem().Implements(reflect.TypeFor[driver.Valuer]()) {
		return nil, nil
	}
	return v.Value()
}
