package asyncjob

import (
	"testing"
	"time"
)

// A schedule is refused, or its next time comes after now.
func FuzzAScheduleIsRefusedOrComesToPass(f *testing.F) {
	for _, expr := range []string{
		"0/5 * * * * ?", "* * * * * *", "@every 1s", "@every 1ns", "@every -1h", "@daily", "@reboot", "TZ=", "TZ=UTC", "CRON_TZ=Asia/Tokyo 0 0 6 * * *", "TZ=Nowhere 0 * * * * *",
		"0 0 0 30 2 *", "0 0 0 29 2 *", "0-59/0 * * * * *", "59-0 * * * * *", "*/99999999999999999999 * * * * *", "0 0 0 1 JAN MON-FRI", "60 * * * * *", "", " ", "* * * * *", "1,2,,3 * * * * *", "TZ=America/Santiago 0 0 0 8 9 ?",
	} {
		f.Add(expr)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		schedule, err := parseSchedule(expr)
		if err != nil {
			return
		}
		now := time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC)
		for range 3 {
			next := schedule.Next(now)
			if !next.After(now) && !next.IsZero() {
				t.Fatalf("%q comes to pass at %v, after %v", expr, next, now)
			}
			if next.IsZero() {
				return // a day that there is no more
			}
			now = next
		}
	})
}
