package asyncjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
)

const cronFields = cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor

// parseSchedule reads a cron expression whose first field is the second.
func parseSchedule(expr string) (cron.Schedule, error) {
	if zone := strings.HasPrefix(expr, "TZ=") || strings.HasPrefix(expr, "CRON_TZ="); zone && !strings.Contains(expr, " ") {
		// The parser slices up to that blank without looking.
		return nil, errors.New("a time zone must be followed by a blank and the schedule")
	}
	schedule, err := cron.NewParser(cronFields).Parse(expr)
	if err != nil {
		return nil, err
	}
	if schedule.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("it never comes to pass: %q", expr)
	}
	return schedule, nil
}

// cronLogger takes the lines of the cron chain.
type cronLogger struct{ log logrus.FieldLogger }

func (l cronLogger) Info(msg string, _ ...any) {
	if msg == "skip" {
		msg = "a tick is skipped: the log has not answered the one before"
	}
	l.log.Debug(msg)
}

func (l cronLogger) Error(err error, msg string, kv ...any) {
	l.log.WithError(err).WithField("details", fmt.Sprint(kv...)).Error(msg)
}
