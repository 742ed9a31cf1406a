package jitter

import (
	"testing"
	"time"
)

func TestPauseIsBoundedAndFixable(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		p := Pause(time.Second)
		if p < time.Second/2 || p > time.Second {
			t.Fatalf("a pause of %v for a second", p)
		}
		seen[p] = true
	}
	if len(seen) < 50 {
		t.Errorf("of 100 pauses %d are different", len(seen))
	}
	if f := BackOff(time.Second, time.Minute).RandomizationFactor; f != 0.5 {
		t.Errorf("the factor is %v", f)
	}
	Fix()
	defer fixed.Store(false)
	if Pause(time.Second) != time.Second || Pause(0) != 0 || BackOff(time.Second, time.Minute).RandomizationFactor != 0 {
		t.Error("a fixed pause is another")
	}
}
