package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// galeraProvider is the path of the library in Debian's galera-4.
const galeraProvider = "/usr/lib/galera/libgalera_smm.so"

// ClusterAccount is the applications' account on a cluster. It has all rights on the databases of a
// [Cluster], but no administrative ones (unlike root, it is subject to read_only). It has no
// password.
const ClusterAccount = "bed_app"

// Cluster is a private MariaDB cluster: Galera nodes on 127.0.0.1 that end with the test. Call its
// methods on the test's goroutine.
type Cluster struct {
	Nodes []*Node
	t     testing.TB
}

// Node is a node of a cluster. [Node.Rejoin] restarts a killed one.
type Node struct {
	*Server
	cluster *Cluster
	// group is the address of the nodes' own traffic.
	group string
}

// Galera starts a cluster of n nodes. change returns further options of the i-th. With -short the
// test is skipped; without the binaries it fails with installation advice.
func Galera(t testing.TB, n int, change func(i int) []string) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a private cluster")
	}
	if _, err := os.Stat(galeraProvider); err != nil {
		t.Fatalf("testdb: %v; `make test` installs it as root on Debian and Ubuntu, else install galera-4, rsync and lsof", err)
	}
	c := &Cluster{t: t}
	ports := make([][3]int, n)
	for i := range ports {
		for k := range ports[i] {
			ports[i][k] = keptPort(t)
		}
	}
	for i := range n {
		group := fmt.Sprintf("127.0.0.1:%d", ports[i][0])
		extra := []string{
			"--wsrep-on=ON", "--wsrep-provider=" + galeraProvider, "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
			"--wsrep-cluster-name=bed", "--wsrep-sst-method=rsync", "--wsrep-slave-threads=2",
			fmt.Sprintf("--wsrep-node-name=node%d", i+1), "--wsrep-node-address=" + group,
			fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", ports[i][2]),
			fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://%s;ist.recv_addr=127.0.0.1:%d;gcache.size=32M;pc.recovery=false;"+
				"evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT5S;evs.inactive_timeout=PT10S;evs.install_timeout=PT10S", group, ports[i][1]),
		}
		if change != nil {
			extra = append(extra, change(i)...)
		}
		join := "--wsrep-cluster-address=gcomm://" // it begins a cluster
		if i > 0 {
			join = c.address(nil)
		}
		node := &Node{Server: private(t, recipes[DriverMySQL], append(extra, join)), cluster: c, group: group}
		c.Nodes = append(c.Nodes, node)
		c.AwaitWhole()
	}
	return c
}

// address is the cluster's address for a joining node.
func (c *Cluster) address(except *Node) string {
	var groups []string
	for _, n := range c.Nodes {
		if n != except {
			groups = append(groups, n.group)
		}
	}
	return "--wsrep-cluster-address=gcomm://" + strings.Join(groups, ",")
}

// DB makes an empty database with rights for [ClusterAccount], and returns it as seen through each
// node.
func (c *Cluster) DB(t testing.TB) []DB {
	t.Helper()
	made := c.Nodes[0].Server.DB(t)
	c.Nodes[0].Exec("CREATE USER IF NOT EXISTS "+ClusterAccount, "GRANT ALL ON `"+made.Name+"`.* TO "+ClusterAccount)
	var dbs []DB
	for _, n := range c.Nodes {
		n.sees("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '" + made.Name + "'")
		db := made.Via(n.Addr())
		db.DSN = strings.Replace(db.DSN, "root@", ClusterAccount+"@", 1)
		dbs = append(dbs, db)
	}
	return dbs
}

// Isolate cuts the node off from the others, and they continue without it; [Node.Heal] ends that.
func (n *Node) Isolate() { n.Exec("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'") }

// Heal ends [Node.Isolate] and waits until the node has caught up.
func (n *Node) Heal() {
	n.t.Helper()
	n.Exec("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")
	n.cluster.AwaitWhole()
}

// Rejoin starts a killed or stopped node. Another node sends it the missing data.
func (n *Node) Rejoin() {
	n.t.Helper()
	last := len(n.inst.extra) - 1
	n.inst.extra[last] = n.cluster.address(n)
	n.Start()
	n.cluster.AwaitWhole()
}

// AwaitWhole waits until all running nodes form a cluster.
func (c *Cluster) AwaitWhole() {
	c.t.Helper()
	running := 0
	for _, n := range c.Nodes {
		if n.inst.running() {
			running++
		}
	}
	for _, n := range c.Nodes {
		if n.inst.running() {
			n.sees(fmt.Sprintf("SELECT COUNT(*) = 3 FROM information_schema.global_status WHERE (variable_name, variable_value) IN "+
				"(('WSREP_LOCAL_STATE_COMMENT', 'Synced'), ('WSREP_CLUSTER_STATUS', 'Primary'), ('WSREP_CLUSTER_SIZE', '%d'))", running))
		}
	}
}

// AwaitCutOff waits until the node has noticed its isolation.
func (n *Node) AwaitCutOff() {
	n.t.Helper()
	n.sees("SELECT COUNT(*) FROM information_schema.global_status WHERE variable_name = 'WSREP_CLUSTER_STATUS' AND variable_value <> 'Primary'")
}

// sees waits until a query returns a nonzero number. A node that is not ready answers only SHOW and
// SET, and at times not even those.
func (n *Node) sees(query string) {
	n.t.Helper()
	deadline := time.Now().Add(startTimeout)
	var last error
	for time.Now().Before(deadline) {
		var count int
		last = n.inst.admin().do(context.Background(), func(one *sql.DB) error {
			if _, err := one.Exec("SET SESSION wsrep_dirty_reads = ON"); err != nil {
				return err
			}
			return one.QueryRow(query).Scan(&count)
		})
		if last == nil && count > 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.t.Fatalf("testdb: waited in vain on %s for %s: %v; end of its log:\n%s", n.group, query, last, n.inst.logTail())
}

// AdminDSN is for root.
func (n *Node) AdminDSN() string { return n.inst.admin().dsn }
