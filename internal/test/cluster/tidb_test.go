package cluster

import (
	"database/sql"
	"os"
	"os/exec"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

// tidb returns a database on the TiDB of BED_TEST_TIDB_DSN, set by make test-tidb; there is false
// elsewhere.
func tidb(t *testing.T) (dsn string, there bool) {
	t.Helper()
	if dsn = os.Getenv("BED_TEST_TIDB_DSN"); dsn == "" {
		t.Log("runs by make test-tidb")
		return "", false
	}
	// As a cluster of TiDB's is set up; its store in memory is not.
	admin, err := sql.Open(testdb.DriverMySQL, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	if _, err := admin.Exec("SET GLOBAL tidb_txn_mode = 'pessimistic'"); err != nil {
		t.Fatal(err)
	}
	return dsn, true
}

func TestTiDBSumsAreExactAndLogsEmpty(t *testing.T) {
	dsn, there := tidb(t)
	if !there {
		return
	}
	var dbs [2]testdb.DB
	for i := range dbs {
		db, drop, err := testdb.Create(testdb.DriverMySQL, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := drop(); err != nil {
				t.Error(err)
			}
		})
		dbs[i] = db
	}
	one := place{dbs[0], dbs[1]}
	w := newWorld(t, dbs[0].Open(t), []place{one, one, one})
	w.storm(func() { pause(); pause() })
}

// tidbClaims selects the acceptance tests that TiDB can run. It leaves out tests with triggers,
// functions, savepoints or RETURNING, and tests of locks that TiDB takes differently.
const tidbClaims = "^Test(RuleDelivered|RulePendingWhenTheConnection|RuleNotAccepted|ExactlyOnceApplies|ExactlyOnceSurvives|ExactlyOnceIncrements|" +
	"KeyADML|KeyALocal|KeyAStaged|KeyAnother|KeysThatDiffer|KeyOfMany|KeyTheAnswer|Replay|ADuplicate|CommitWithout|StagedBefore|StagedEnd|StagedWrites)"

// tidbLacks are those among them with a savepoint, RETURNING, or a wait for a visible lock.
const tidbLacks = "KeyALocalTransactionSentAgain|LockComesFree|KeyTheAnswerThatWasLost|KeyOfManyCallers"

func TestTheAcceptanceClaimsHoldOnTiDB(t *testing.T) {
	dsn, there := tidb(t)
	if !there {
		return
	}
	for pkg, run := range map[string]string{"txlog": "TheContractIsKept", "internal/test/acceptance/...": tidbClaims} {
		cmd := exec.Command("go", "test", "-count=1", "-timeout=15m", "-p=1", "-parallel=3", "-run", run+"/^mysql$", "-skip", tidbLacks, "github.com/bedsql/bed/"+pkg)
		cmd.Env = append(os.Environ(), testdb.EnvMySQLDSN+"="+dsn)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
