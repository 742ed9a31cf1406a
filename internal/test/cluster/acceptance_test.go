package cluster

import (
	"os"
	"os/exec"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

// claims are the acceptance tests that make sense on a node: not those that start
// servers of their own, nor those of a MariaDB alone (its sessions and its locks,
// which a cluster has otherwise).
const claims = "^Test(Rule|Exactly|Key|Staged|Soft|Commit|Replay|ARolledBack|ADuplicate|TheJob|APending|AWriterThatLost|ARETURNING|Rows|Buffered|EveryForm|Guard|AStuckRow|ATableOfReceipts)"

func TestTheAcceptanceClaimsHoldOnANode(t *testing.T) {
	if !full {
		t.Log("runs by make test-cluster")
		return
	}
	// The tests' own tables have no keys, and their ids are 1, 2, 3.
	c := testdb.Galera(t, 3, func(int) []string { return []string{"--wsrep-auto-increment-control=OFF"} })
	cmd := exec.Command("go", "test", "-count=1", "-timeout=15m", "-parallel=4", "-run", claims+"/^mysql$", "github.com/bedsql/bed/internal/test/acceptance")
	cmd.Env = append(os.Environ(), testdb.EnvMySQLDSN+"="+c.Nodes[0].AdminDSN())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
