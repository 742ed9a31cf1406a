package besteffort

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// told returns the lines of a level, and forgets them.
func told(hook *logtest.Hook, level logrus.Level) (lines []string) {
	for _, e := range hook.AllEntries() {
		if e.Level == level {
			line := e.Message
			for _, field := range []string{"entry", "more", "within"} {
				if v, ok := e.Data[field]; ok {
					line += " " + field + "=" + strings.TrimSpace(logrusText(v))
				}
			}
			lines = append(lines, line)
		}
	}
	hook.Reset()
	return lines
}

func logrusText(v any) string {
	b, _ := (&logrus.TextFormatter{DisableTimestamp: true}).Format(&logrus.Entry{Logger: logrus.New(), Data: logrus.Fields{"v": v}})
	_, text, _ := strings.Cut(string(b), "v=")
	return text
}

func TestWarningsAreSummedUpEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, hook := logtest.NewNullLogger()
		log.SetLevel(logrus.DebugLevel)
		w := new(warnings)
		warn := func(dataSource, id string) {
			w.warn(dataSource, logrus.NewEntry(log).WithField("entry", id), "it is left")
		}
		want := func(when string, lines ...string) {
			t.Helper()
			if got := told(hook, logrus.WarnLevel); strings.Join(got, "\n") != strings.Join(lines, "\n") {
				t.Errorf("%s:\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
		}
		warn("a", "1")
		warn("b", "2")
		want("the first of each data source", "it is left entry=1", "it is left entry=2")
		for range 1000 {
			warn("a", "3")
		}
		if n := len(told(hook, logrus.DebugLevel)); n != 1000 {
			t.Errorf("%d lines at debug level", n)
		}
		time.Sleep(summaryEvery - time.Second)
		synctest.Wait()
		want("within the minute")
		time.Sleep(time.Second)
		synctest.Wait()
		want("after a minute", "it is left: 1000 more, this is the last of them entry=3 more=1000 within=1m0s")

		warn("a", "4") // the next minute
		want("in the next minute")
		time.Sleep(summaryEvery)
		synctest.Wait()
		want("after it", "it is left: 1 more, this is the last of them entry=4 more=1 within=1m0s")
		time.Sleep(2 * summaryEvery)
		synctest.Wait()
		want("in silence")
		warn("a", "5")
		want("after the silence", "it is left entry=5")

		warn("a", "6")
		time.Sleep(7 * time.Second)
		w.close()
		want("at the end", "it is left: 1 more, this is the last of them entry=6 more=1 within=7s")
		warn("a", "7")
		want("behind the end", "it is left entry=7")
		time.Sleep(2 * summaryEvery)
		synctest.Wait()
		want("no timer is left")
	})
}
