package besteffort

import (
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// summaryEvery is how often warnings of one kind are summed up.
const summaryEvery = time.Minute

// warnings sums up the warnings about single writes in an outage. It logs the first warning of a
// kind about a data source at once. At the end of the minute it logs the number of further ones. A
// timer runs only while there is something to log. Each single warning is logged at debug level.
type warnings struct {
	mu     sync.Mutex
	kinds  map[kindOfWarning]*summary
	closed bool
}

type kindOfWarning struct{ dataSource, message string }

// summary counts the warnings of one kind in one minute.
type summary struct {
	begun time.Time
	more  int
	// last is the log entry of the last of them.
	last  *logrus.Entry
	timer *time.Timer
}

func (w *warnings) warn(dataSource string, entry *logrus.Entry, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := kindOfWarning{dataSource, message}
	t := w.kinds[k]
	if w.closed || t == nil || t.more == 0 && time.Since(t.begun) >= summaryEvery {
		entry.Warn(message)
		if w.kinds == nil {
			w.kinds = map[kindOfWarning]*summary{}
		}
		w.kinds[k] = &summary{begun: time.Now()}
		return
	}
	entry.Debug(message)
	t.more++
	t.last = entry
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Until(t.begun.Add(summaryEvery)), func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if t.timer != nil {
				t.summarize(message)
			}
		})
	}
}

// summarize logs the summary and begins the next minute.
func (t *summary) summarize(message string) {
	t.timer.Stop()
	t.last.WithFields(logrus.Fields{"more": t.more, "within": time.Since(t.begun).Round(time.Second).String()}).
		Warn(fmt.Sprintf("%s: %d more, this is the last of them", message, t.more))
	*t = summary{begun: time.Now()}
}

// close logs the remaining summaries. Later warnings are logged at once.
func (w *warnings) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for k, t := range w.kinds {
		if t.timer != nil {
			t.summarize(k.message)
		}
	}
}
