package cluster

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

// galera starts three nodes that refuse tables without a primary key.
func galera(t *testing.T) *testdb.Cluster {
	t.Helper()
	return testdb.Galera(t, 3, func(int) []string { return []string{"--wsrep-mode=REQUIRED_PRIMARY_KEY"} })
}

// on makes a target and a log on a cluster, with a site on each node.
func on(t *testing.T, c *testdb.Cluster) *world {
	t.Helper()
	targets, logs := c.DB(t), c.DB(t)
	var places []place
	for i := range targets {
		places = append(places, place{targets[i], logs[i]})
	}
	asked := targets[0] // and answering with all that any node has committed
	asked.DSN += "&wsrep_sync_wait=1"
	w := newWorld(t, asked.Open(t), places)
	w.recovered = c.AwaitWhole
	return w
}

func TestGaleraSumsAreExactAndLogsEmpty(t *testing.T) {
	c := galera(t)
	faults := []struct {
		name  string
		short bool
		fault func()
	}{
		{"hot rows on three nodes", false, func() { pause() }},
		{"a node is killed and rejoins", true, func() {
			pause()
			c.Nodes[2].Kill()
			c.AwaitWhole() // without it
			pause()
			c.Nodes[2].Rejoin()
			pause()
		}},
		{"a node is cut off and healed", true, func() {
			pause()
			c.Nodes[1].Isolate()
			c.Nodes[1].AwaitCutOff()
			if err := takesWrites(t, named(testdb.DB{Driver: testdb.DriverMySQL, DSN: c.Nodes[1].AdminDSN()}), mysql.Target); err == nil || !strings.Contains(err.Error(), "1047") {
				t.Errorf("the probe of a node that is cut off: %v, want 1047", err)
			}
			pause()
			c.Nodes[1].Heal()
			pause()
		}},
		{"a node takes no writes", false, func() {
			pause()
			c.Nodes[1].Exec("SET GLOBAL read_only = 1")
			pause()
			c.Nodes[1].Exec("SET GLOBAL read_only = 0")
			pause()
		}},
		{"a node lags", false, func() {
			pause()
			lag, err := testdb.DB{Driver: testdb.DriverMySQL, DSN: c.Nodes[2].AdminDSN()}.Open(t).Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			run(t, lag, "SET GLOBAL wsrep_desync = ON", "FLUSH TABLES WITH READ LOCK")
			pause()
			run(t, lag, "UNLOCK TABLES", "SET GLOBAL wsrep_desync = OFF")
			pause()
		}},
		{"every node is killed once", false, func() {
			for _, i := range []int{2, 1} {
				pause()
				c.Nodes[i].Kill()
				c.AwaitWhole() // without it
				pause()
				c.Nodes[i].Rejoin()
			}
		}},
	}
	for _, f := range faults {
		if !f.short && !full {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			on(t, c).storm(f.fault)
		})
	}
	t.Run("six jobs drain", func(t *testing.T) { sixJobs(t, c) })
	t.Run("a node is cut off with COMMITs under way", func(t *testing.T) { cutOffAtCommit(t, c) })
}

// cutOffAtCommit repeatedly cuts off a node with running COMMITs. The others apply the ones they
// have received, regardless of the node's answer.
func cutOffAtCommit(t *testing.T, c *testdb.Cluster) {
	const writersEach = 16
	rounds := 1
	if full {
		rounds = 10
	}
	targets, logs := c.DB(t), c.DB(t)
	w := newWorld(t, targets[0].Open(t), []place{{targets[0], logs[0]}})
	w.recovered = c.AwaitWhole
	ways := []struct {
		logging bedsql.Logging
		log     testdb.DB // before the write it must be there; else it is cut off too
	}{{bedsql.LogBefore, logs[0]}, {bedsql.LogAlongside, logs[1]}, {bedsql.LogOnFailure, logs[1]}}
	var sites []*site
	for _, way := range ways {
		s := newSite(t, place{targets[1], way.log}, func(cfg *bedsql.Config) { cfg.Logging = way.logging })
		s.number = len(sites) + 2
		s.pool.SetMaxOpenConns(writersEach)
		sites = append(sites, s)
	}
	for range rounds {
		var writers sync.WaitGroup
		var cut atomic.Bool
		before := w.tally.delivered.Load()
		for _, s := range sites {
			for i := range writersEach {
				writers.Go(func() {
					for s.writeLine(i%3, &w.tally) == nil || !cut.Load() {
					}
				})
			}
		}
		for late := time.Now().Add(patience); w.tally.delivered.Load() < before+500 && time.Now().Before(late); {
			time.Sleep(time.Millisecond)
		}
		cut.Store(true)
		c.Nodes[1].Isolate()
		c.Nodes[1].AwaitCutOff()
		writers.Wait()
		c.Nodes[1].Heal()
	}
	jobs, stop := context.WithCancel(t.Context())
	var worker sync.WaitGroup
	job := w.sites[0].job()
	worker.Go(func() {
		for jobs.Err() == nil {
			_, _ = job.RunOnce(jobs)
		}
	})
	w.drain()
	stop()
	worker.Wait()
	w.check()
}

// writeLine writes a line of the journal: alone, in a local transaction, or under a
// key, and then sends the same request again.
func (s *site) writeLine(way int, n *tally) (err error) {
	line := n.lines.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var kind string
	switch way {
	case 0:
		kind = "alone"
		_, err = s.pool.ExecContext(ctx, s.entry(line))
	case 1:
		kind = "in a transaction"
		var tx *sql.Tx
		if tx, err = s.pool.BeginTx(ctx, nil); err == nil {
			if _, err = tx.ExecContext(ctx, s.entry(line)); err == nil {
				err = tx.Commit()
			}
			_ = tx.Rollback()
		}
	default:
		kind = "under a key"
		for range 2 { // the last answer is for both
			keyed, _ := bedsql.WithIdempotencyKey(ctx, fmt.Sprint("line ", line))
			_, err = s.pool.ExecContext(keyed, s.entry(line))
		}
	}
	n.note(err)
	n.journal(line, err, s, kind)
	return err
}

// Each node judges the leases of a log by its own clock. Between nodes whose clocks differ by more
// than a lease, leases do not work and every unit has two owners. The receipts still allow one
// application each.
func TestNodesWithSkewedClocksApplyOnce(t *testing.T) {
	if !full {
		t.Log("runs by make test-cluster")
		return
	}
	preload, set, err := testdb.FakeClock(t)
	if err != nil {
		t.Fatal(err)
	}
	if err := set(time.Minute); err != nil {
		t.Fatal(err)
	}
	c := testdb.Galera(t, 3, func(i int) []string {
		if i == 1 {
			return preload
		}
		return nil
	})
	on(t, c).storm(func() { pause(); pause() })
}

// takesWrites returns the result of the job's probe of a data source.
func takesWrites(t *testing.T, dsn string, targetOf func(string) (delivery.Target, error)) error {
	t.Helper()
	target, err := targetOf(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := target.Connector.Connect(t.Context())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return target.Dialect.Writable(t.Context(), conn)
}

func run(t *testing.T, conn *sql.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := conn.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// sixJobs lets two jobs on each node deliver abandoned units.
func sixJobs(t *testing.T, c *testdb.Cluster) {
	t.Helper()
	units := 1500
	if full {
		units = 20000
	}
	w := on(t, c)
	batch := make([]*entry.Unit, 0, 500)
	for i := range units {
		id := entry.NewID()
		batch = append(batch, &entry.Unit{
			ID: id, DataSource: dataSource, Settings: w.sites[0].target.Settings, Receipt: attempt.ReceiptID(w.sites[0].target.Dialect, id),
			Statements: []entry.Statement{{SQL: w.sites[0].entry(int64(i))}},
		})
		w.tally.note(bedsql.ErrPending)
		w.tally.journal(int64(i), bedsql.ErrPending, w.sites[0], "for the jobs")
		if len(batch) == cap(batch) || i == units-1 {
			// No writer renews the lease: the jobs can soon claim them.
			if err := w.sites[i/500%len(w.sites)].storage.Add(t.Context(), 10*time.Second, batch...); err != nil {
				t.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	var workers sync.WaitGroup
	var delivered [6]int
	for i := range delivered {
		job := w.sites[i%len(w.sites)].job()
		workers.Go(func() {
			for {
				report, err := job.RunOnce(t.Context())
				if err == nil && report.Claimed == 0 {
					if left, err := w.units(); err == nil && len(left) == 0 {
						return
					}
				}
				delivered[i] += report.Delivered
				if t.Context().Err() != nil {
					return
				}
			}
		})
	}
	w.drain()
	workers.Wait()
	w.check()
	t.Logf("delivered by each job: %d", delivered)
}
