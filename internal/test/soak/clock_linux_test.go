package soak

import "golang.org/x/sys/unix"

// clock returns nanoseconds of a clock shared by all processes of the machine. It cannot be set.
func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}
