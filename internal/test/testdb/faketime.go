package testdb

import (
	"errors"
	"path/filepath"
)

// FakeTime gives the options of a private server whose clock is off by a difference
// ("+60s"), by libfaketime.
func FakeTime(difference string) (options []string, err error) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return []string{
				envOption + "LD_PRELOAD=" + found[0], envOption + "FAKETIME=" + difference,
				// What the server waits for is not off.
				envOption + "FAKETIME_DONT_FAKE_MONOTONIC=1", envOption + "DONT_FAKE_MONOTONIC=1",
			}, nil
		}
	}
	return nil, errors.New("libfaketime is missing; install it (`apt-get install faketime` on Debian and Ubuntu)")
}
