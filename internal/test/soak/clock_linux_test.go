package soak

import "golang.org/x/sys/unix"

// clock is one that all processes of the machine share and nobody sets, in
// nanoseconds.
func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}
