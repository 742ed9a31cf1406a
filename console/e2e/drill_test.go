package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// check is a monitor's request.
func (s *stage) check(t *testing.T) (status int, line string) {
	t.Helper()
	out, err := exec.Command(bedJob, "check", "-c", s.config, "--parked-warning", "1", "--parked-critical", "10000").CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		status = exit.ExitCode()
	}
	return status, strings.TrimSpace(string(out))
}

// A target refuses ten thousand writes. From the monitor's alarm to the last delivery an
// operator takes at most six actions.
func TestADrillTakesAtMostSixActions(t *testing.T) {
	const writes = 10_000
	s := newStage(t)
	exe(t, s.target, "CREATE TABLE payments (id BIGINT PRIMARY KEY, CONSTRAINT closed CHECK (id < 0)) ENGINE=InnoDB")
	s.fill(t, crowd{n: writes, dataSource: "orders_3", sql: "INSERT INTO payments (id) VALUES ($N)", due: true})
	s.run(t)
	eventually(t, "check is critical", func() error {
		if status, line := s.check(t); status != 2 {
			return fmt.Errorf("%d %s", status, line)
		}
		return nil
	})
	// The cause is removed at its place.
	exe(t, s.target, "ALTER TABLE payments DROP CONSTRAINT closed")

	b := newBrowser(t)
	b.open(s.url + "/")
	b.click("#all-parked")
	b.wants("× Error 4025", "CONSTRAINT `closed` failed")
	b.counts("Entries 10,000")
	b.click("#bulk-retry")
	b.wants("Retry 10,000 entries?")
	b.fill("#reason", "the constraint is gone")
	b.click("#confirm")
	b.becomes("No entry matches.")
	eventually(t, "all are delivered", func() error {
		if n := one(t, s.target, "SELECT COUNT(*) FROM payments"); n != writes {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	eventually(t, "check is content", func() error {
		if status, line := s.check(t); status != 0 {
			return fmt.Errorf("%d %s", status, line)
		}
		return nil
	})
	if b.actions > 6 {
		t.Errorf("it took %d actions", b.actions)
	}
	if n := one(t, s.log, "SELECT COUNT(*) FROM transaction_log"); n != 0 {
		t.Errorf("%d entries are left", n)
	}
	b.quiet()
}
