package cluster

import (
	"os"
	"os/exec"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

// claims selects the acceptance tests for a node. It leaves out tests that start their own servers,
// and tests of a single MariaDB, because sessions and locks differ on a cluster.
const claims = "^Test(Rule|Exactly|Key|Staged|Soft|Commit|Replay|ARolledBack|ADuplicate|TheJob|APending|AWriterThatLost|ARETURNING|Rows|Buffered|EveryForm|Guard|AStuckRow|ATableOfReceipts)"

func TestTheAcceptanceClaimsHoldOnANode(t *testing.T) {
	if !full {
		t.Log("runs by make test-cluster")
		return
	}
	// The tests' own tables have no keys, and their ids are 1, 2, 3.
	c := testdb.Galera(t, 3, func(int) []string { return []string{"--wsrep-auto-increment-control=OFF"} })
	cmd := exec.Command("go", "test", "-count=1", "-timeout=15m", "-p=1", "-parallel=4", "-run", claims+"/^mysql$", "github.com/bedsql/bed/internal/test/acceptance/...")
	cmd.Env = append(os.Environ(), testdb.EnvMySQLDSN+"="+c.Nodes[0].AdminDSN())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
