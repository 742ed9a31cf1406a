// Package localzone names a time zone so that two processes give it the same
// name only if it is the same: "Local" alone would not say which.
package localzone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Name returns the name of loc: an IANA name, "UTC" (for nil too), or, for a
// local zone whose name cannot be found out, its offsets in winter and summer.
func Name(loc *time.Location) string {
	switch loc {
	case nil, time.UTC:
		return "UTC"
	case time.Local:
		return local()
	}
	return canonical(loc)
}

func local() string {
	candidates := []string{strings.TrimPrefix(os.Getenv("TZ"), ":")}
	if path, err := filepath.EvalSymlinks("/etc/localtime"); err == nil {
		if _, name, ok := strings.Cut(path, "/zoneinfo/"); ok {
			candidates = append(candidates, name)
		}
	}
	for _, name := range candidates {
		if loc, err := time.LoadLocation(name); err == nil && name != "" && same(loc, time.Local) {
			return canonical(loc)
		}
	}
	if same(time.UTC, time.Local) {
		return "UTC"
	}
	winter, summer := probes()[0].In(time.Local), probes()[1].In(time.Local)
	return fmt.Sprintf("Local(%s,%s)", winter.Format("-07:00"), summer.Format("-07:00"))
}

// canonical writes the many names of UTC as one.
func canonical(loc *time.Location) string {
	switch loc.String() {
	case "UTC", "Etc/UTC", "Etc/UCT", "UCT", "Universal", "Zulu", "Etc/Universal", "Etc/Zulu":
		return "UTC"
	}
	return loc.String()
}

// same guards against a TZ that was changed after the process began.
func same(a, b *time.Location) bool {
	for _, t := range probes() {
		_, x := t.In(a).Zone()
		if _, y := t.In(b).Zone(); x != y {
			return false
		}
	}
	return true
}

func probes() []time.Time {
	return []time.Time{
		time.Date(2024, 1, 15, 12, 0, 0, 0, time.UTC), time.Date(2024, 7, 15, 12, 0, 0, 0, time.UTC),
		time.Date(1995, 1, 15, 12, 0, 0, 0, time.UTC), time.Date(2010, 7, 15, 12, 0, 0, 0, time.UTC),
	}
}
