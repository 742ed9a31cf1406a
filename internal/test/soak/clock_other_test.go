//go:build !linux

package soak

import "time"

// clock is the machine's, in nanoseconds: a run is false in which it is set.
func clock() int64 { return time.Now().UnixNano() }
