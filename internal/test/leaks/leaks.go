// Package leaks gives the goroutines that tests leave time to end.
package leaks

import (
	"time"

	"go.uber.org/goleak"
)

// patience is for a busy machine: goleak itself waits for less than half a second.
const patience = 30 * time.Second

// Patient has goleak.VerifyTestMain look once the goroutines have ended, or have had the time
// to. ignored are the options that say which need not.
func Patient(m goleak.TestingM, ignored ...goleak.Option) goleak.TestingM { return patient{m, ignored} }

type patient struct {
	goleak.TestingM
	ignored []goleak.Option
}

func (p patient) Run() int {
	status := p.TestingM.Run()
	if status != 0 {
		return status // nobody looks
	}
	for late := time.Now().Add(patience); goleak.Find(p.ignored...) != nil && time.Now().Before(late); {
		time.Sleep(10 * time.Millisecond)
	}
	return status
}
