package truth

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// HY000 is unspecific: only these errors' numbers are telling.
func TestFinalServerErrorsAreRefused(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Exec("CREATE TABLE parted (id INT) PARTITION BY HASH (id) PARTITIONS 2", "CREATE TABLE plain (id INT)")
	for what, write := range map[string]func() error{
		"1390, too many placeholders": func() error {
			_, err := r.Wrapped.Exec("INSERT INTO plain VALUES (?)"+strings.Repeat(", (?)", 65_535), make([]any, 65_536)...)
			return err
		},
		"1735, unknown partition": func() error {
			_, err := r.Wrapped.Exec("INSERT INTO parted PARTITION (p9) VALUES (1)")
			return err
		},
		"1747, no partitions": func() error {
			_, err := r.Wrapped.Exec("DELETE FROM plain PARTITION (p9)")
			return err
		},
	} {
		err := write()
		if errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%s: accepted: %v", what, err)
		}
		rig.WantOutcomeOf(t, what, err, bedsql.OutcomeRefused)
	}
	if n := len(r.Logs()); n != 0 {
		t.Errorf("the log has %d entries", n)
	}
}

func TestUnclassifiedErrorIsCountedAndNamed(t *testing.T) {
	t.Parallel()
	var lines rig.LogLines
	r := rig.New(t, testdb.MySQL(t), func(c *bedsql.Config) { c.Logger, c.SyncMaxDeliveryTryTimes = lines.Logger(), 1 })
	r.Exec("CREATE TABLE odd (id INT)",
		"CREATE TRIGGER o BEFORE INSERT ON odd FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'odd', MYSQL_ERRNO = 9876")
	_, err := r.Wrapped.Exec("INSERT INTO odd VALUES (1)")
	rig.WantOutcomeOf(t, "a logged write", err, bedsql.OutcomeAccepted)
	var server *mysql.MySQLError
	if !errors.As(err, &server) || server.Number != 9876 {
		t.Fatalf("%v, want error 9876 inside", err)
	}
	rig.WantOutcomeOf(t, "the error itself", server, bedsql.OutcomeUnknown)
	if n := r.Counters.Unclassified.Load(); n != 2 { // with its retry
		t.Errorf("%d unclassified attempts are counted, want 2", n)
	}
	if text := lines.String(); !strings.Contains(text, "unclassified: server error 9876") {
		t.Errorf("the log lines do not name it:\n%s", text)
	}
	units := r.Logs()
	if len(units) != 1 || units[0].Parked {
		t.Errorf("the log has %+v, want one entry for the job", units)
	}
}
