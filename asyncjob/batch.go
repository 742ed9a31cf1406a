package asyncjob

import (
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
)

// batch is the current work of one worker: units of different transactions.
type batch []*claimed

// deliver works on all units and sets their results.
func (b batch) deliver() {
	var joined batch
	for _, u := range b {
		if len(b) > 1 && u.joins() && (joined == nil || u.Settings == joined[0].Settings && u.Session == joined[0].Session) {
			joined = append(joined, u)
		}
	}
	ended := len(joined) > 1 && joined.join()
	for _, u := range b {
		if !ended || !u.joined {
			u.drain.job.guard(func() { u.result = u.attend() })
		}
	}
}

// join delivers units in one local transaction. If one fails, join rolls back and returns
// false, and each unit gets an attempt of its own. Only an unanswered COMMIT leaves all of
// them in doubt.
func (b batch) join() bool {
	d := b[0].drain
	whole := &entry.Unit{ID: b[0].ID, Settings: b[0].Settings, Session: b[0].Session}
	for _, u := range b {
		whole.Statements = append(whole.Statements, u.Statements...)
	}
	a := d.try(whole, attempt.Replay)
	if !a.Delivered() && !a.Maybe() {
		if a.readOnly {
			d.wentDown(a.Err)
		}
		return false
	}
	if a.Delivered() {
		a.Outcome = attempt.Outcome{}
	}
	for _, u := range b {
		u.joined = true
		u.publish(listener.BeforeExecute, attempt.Outcome{}, 0)
		u.attempted(a)
		d.job.guard(func() { u.result = u.judge(a) })
	}
	return true
}
