package testdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// FakeClock returns the options of a private server with an adjustable clock, by libfaketime. set
// shifts it against the machine's, forwards or back, from the server's next look at it.
func FakeClock(t testing.TB) (options []string, set func(difference time.Duration) error, err error) {
	t.Helper()
	found := ""
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1"} {
		if paths, _ := filepath.Glob(pattern); len(paths) > 0 {
			found = paths[0]
		}
	}
	if found == "" {
		return nil, nil, errors.New("libfaketime is missing; install it (`apt-get install faketime` on Debian and Ubuntu)")
	}
	// The server's account cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", dirPrefix) //nolint:usetesting // for that reason
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the server reads it
		return nil, nil, err
	}
	file := filepath.Join(dir, "clock")
	set = func(difference time.Duration) error {
		next := file + ".next"
		if err := os.WriteFile(next, fmt.Appendf(nil, "%+.3f\n", difference.Seconds()), 0o644); err != nil { //nolint:gosec // the same
			return err
		}
		return os.Rename(next, file) // nobody reads half of it
	}
	return []string{
		envOption + "LD_PRELOAD=" + found, envOption + "FAKETIME_TIMESTAMP_FILE=" + file, envOption + "FAKETIME_NO_CACHE=1",
		// These keep the server's waits accurate.
		envOption + "FAKETIME_DONT_FAKE_MONOTONIC=1", envOption + "DONT_FAKE_MONOTONIC=1",
	}, set, set(0)
}
