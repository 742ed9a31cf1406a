package acceptance

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// HY000 is unspecific: only these errors' numbers are telling.
func TestFinalServerErrorsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t))
	r.exec("CREATE TABLE parted (id INT) PARTITION BY HASH (id) PARTITIONS 2", "CREATE TABLE plain (id INT)")
	for what, write := range map[string]func() error{
		"1390, too many placeholders": func() error {
			_, err := r.wrapped.Exec("INSERT INTO plain VALUES (?)"+strings.Repeat(", (?)", 65_535), make([]any, 65_536)...)
			return err
		},
		"1735, unknown partition": func() error {
			_, err := r.wrapped.Exec("INSERT INTO parted PARTITION (p9) VALUES (1)")
			return err
		},
		"1747, no partitions": func() error {
			_, err := r.wrapped.Exec("DELETE FROM plain PARTITION (p9)")
			return err
		},
	} {
		err := write()
		if errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%s: accepted: %v", what, err)
		}
		wantOutcomeOf(t, what, err, bedsql.OutcomeRefused)
	}
	if n := len(r.logs()); n != 0 {
		t.Errorf("the log has %d entries", n)
	}
}

func TestUnclassifiedErrorIsCountedAndNamed(t *testing.T) {
	t.Parallel()
	var lines logLines
	r := newRig(t, testdb.MySQL(t), func(c *bedsql.Config) { c.Logger, c.SyncMaxDeliveryTryTimes = lines.logger(), 1 })
	r.exec("CREATE TABLE odd (id INT)",
		"CREATE TRIGGER o BEFORE INSERT ON odd FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'odd', MYSQL_ERRNO = 9876")
	_, err := r.wrapped.Exec("INSERT INTO odd VALUES (1)")
	wantOutcomeOf(t, "a logged write", err, bedsql.OutcomeAccepted)
	var server *mysql.MySQLError
	if !errors.As(err, &server) || server.Number != 9876 {
		t.Fatalf("%v, want error 9876 inside", err)
	}
	wantOutcomeOf(t, "the error itself", server, bedsql.OutcomeUnknown)
	if n := r.counters.Unclassified.Load(); n != 2 { // with its retry
		t.Errorf("%d unclassified attempts are counted, want 2", n)
	}
	if text := lines.String(); !strings.Contains(text, "unclassified: server error 9876") {
		t.Errorf("the log lines do not name it:\n%s", text)
	}
	units := r.logs()
	if len(units) != 1 || units[0].Parked {
		t.Errorf("the log has %+v, want one entry for the job", units)
	}
}
