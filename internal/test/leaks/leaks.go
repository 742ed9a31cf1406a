// Package leaks gives goroutines of tests time to end.
package leaks

import (
	"time"

	"go.uber.org/goleak"
)

// patience is for a busy machine: goleak itself waits for less than half a second.
const patience = 30 * time.Second

// Patient makes goleak.VerifyTestMain wait for goroutines to end, within a time limit. ignored are
// the options for exempt goroutines.
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
