package asyncjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const cronFields = cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor

// parseSchedule reads a cron expression that begins with the second.
func parseSchedule(expr string) (cron.Schedule, error) {
	if zone := strings.HasPrefix(expr, "TZ=") || strings.HasPrefix(expr, "CRON_TZ="); zone && !strings.Contains(expr, " ") {
		// The parser slices up to that blank without a check.
		return nil, errors.New("a time zone must be followed by a blank and the schedule")
	}
	schedule, err := cron.NewParser(cronFields).Parse(expr)
	if err != nil {
		return nil, err
	}
	// Next looks for an empty field's match second by second, through years.
	spec, ok := schedule.(*cron.SpecSchedule)
	if ok && min(spec.Second, spec.Minute, spec.Hour, spec.Dom, spec.Month, spec.Dow) == 0 || schedule.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("it never comes to pass: %q", expr)
	}
	return schedule, nil
}

// LongestPause returns the longest time between two of many rounds from now on; 0 for an
// unreadable schedule. It assumes a regular schedule.
func (c Config) LongestPause(now time.Time) (longest time.Duration) {
	schedule, err := parseSchedule(c.WithDefaults().Cron)
	if err != nil {
		return 0
	}
	for range 1000 {
		next := schedule.Next(now)
		if next.IsZero() {
			break
		}
		longest, now = max(longest, next.Sub(now)), next
	}
	return longest
}
