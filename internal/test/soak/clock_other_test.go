//go:build !linux

package soak

import "time"

// clock returns the machine's time in nanoseconds. Setting the clock spoils a run.
func clock() int64 { return time.Now().UnixNano() }
