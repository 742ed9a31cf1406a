package asyncjob

import (
	"regexp"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// mostKinds bounds the kinds of failure of a round; the rest is one more.
const mostKinds = 50

var digits = regexp.MustCompile(`[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*`)

// failures reports the undelivered units of a round: the first of each kind at once, and the
// number of further ones at the end of the round.
type failures struct {
	mu    sync.Mutex
	kinds map[failure]int
}

// failure is a kind: what became of units, and the error without its numbers.
type failure struct {
	level       logrus.Level
	what, error string
}

// tell logs a failed unit. wait is how long it rests; below 0 it is parked.
func (f *failures) tell(log logrus.FieldLogger, level logrus.Level, what, said string, wait time.Duration) {
	k := failure{level, what, digits.ReplaceAllString(said, "?")}
	f.mu.Lock()
	if f.kinds == nil {
		f.kinds = map[failure]int{}
	}
	if _, known := f.kinds[k]; !known && len(f.kinds) >= mostKinds {
		k.error = "other errors"
	}
	f.kinds[k]++
	first := f.kinds[k] == 1
	f.mu.Unlock()
	if !first {
		level = logrus.DebugLevel
	}
	fields := logrus.Fields{"error": said}
	if wait >= 0 {
		fields["next_try_in"] = wait.Round(time.Millisecond).String()
	}
	log.WithFields(fields).Log(level, what)
}

// sum logs the number of further failures of each kind.
func (f *failures) sum(log logrus.FieldLogger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, n := range f.kinds {
		if n > 1 {
			log.WithFields(logrus.Fields{"error": k.error, "more": n - 1}).Log(k.level, k.what)
		}
	}
	f.kinds = nil
}
