package soak

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// ownClock returns options for a log's server with an adjustable clock. The log compares leases,
// next tries and ages on that clock.
func (w *world) ownClock(d *database, options ...string) []string {
	w.t.Helper()
	if d.name != logName {
		return options
	}
	more, set, err := testdb.FakeClock(w.t)
	if err != nil {
		w.t.Logf("the clock of the log's server stays as it is: %v", err)
		return options
	}
	d.setClock = set
	return append(options, more...)
}

// furthest bounds the shifts of the log server's clock. Entries written while it is ahead come due
// that much later.
const furthest = 40 * time.Second

// clockOf shifts the clock of the log's server forwards or back, and counts the shift once the
// server shows it.
func (n *nemesis) clockOf() (time.Duration, func(), bool) {
	d := n.log
	if d.setClock == nil || n.busy[d.server] {
		return 0, nil, false
	}
	back, ok := n.take("clock")
	if !ok {
		return 0, nil, false
	}
	difference := n.some(2*time.Second, furthest)
	if n.rng.IntN(2) == 0 {
		difference = -difference
	}
	repair := func() {
		if err := d.setClock(0); err != nil {
			n.t.Fatal(err)
		}
		back()
	}
	if err := d.setClock(difference); err != nil {
		n.t.Fatal(err)
	}
	query := "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) AS DOUBLE)"
	if d.db.Driver == testdb.DriverPostgres {
		query = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
	defer cancel()
	var said float64
	before := float64(time.Now().UnixMilli()) / 1e3
	if err := d.direct.QueryRowContext(ctx, query).Scan(&said); err != nil {
		repair()
		return 0, nil, false
	}
	said -= difference.Seconds()
	if after := float64(time.Now().UnixMilli()) / 1e3; said < before-1 || said > after+1 {
		n.t.Errorf("the clock of the log's server was set by %v: without that it would say %.3f, between %.3f and %.3f", difference, said, before, after)
	}
	n.trace(fmt.Sprintf("the log's clock differs by %v", difference))
	return n.some(time.Second, 2*n.o.longest), repair, true
}

// smallDisk is a directory for a SQLite log on a small file system of its own, if that can be
// mounted.
func (w *world) smallDisk(d *database) string {
	w.t.Helper()
	dir := w.t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=32m", "bed-soak", dir).CombinedOutput(); err != nil {
		w.t.Logf("the disk under the log will not be filled: no file system can be mounted: %v %s", err, out)
		return dir
	}
	w.t.Cleanup(func() {
		if out, err := exec.Command("umount", "--lazy", dir).CombinedOutput(); err != nil {
			w.t.Errorf("umount %s: %v %s", dir, err, out)
		}
	})
	d.disk = dir
	return dir
}

const fillText = "INSERT INTO nemesis (filling) VALUES (randomblob(3000000))"

// fillDisk leaves no room under the log, and counts the fault once the log reports it. It first
// empties the write-ahead log, because the log may still use the room in there.
func (n *nemesis) fillDisk() (time.Duration, func(), bool) {
	d := n.log
	if d.disk == "" {
		return 0, nil, false
	}
	back, ok := n.take(d)
	if !ok {
		return 0, nil, false
	}
	filling := filepath.Join(d.disk, "filling")
	repair := func() {
		if err := os.Remove(filling); err != nil {
			n.t.Error(err)
		}
		back()
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), 3*time.Second)
	defer cancel()
	_, _ = d.direct.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)") // a reader may be in the way
	if err := fill(filling); err == nil || !strings.Contains(err.Error(), "no space") {
		n.t.Fatalf("filling the disk under the log: %v", err)
	}
	if !n.isFull(ctx, d.direct) {
		repair()
		return 0, nil, false
	}
	return n.some(n.o.lease/2, n.o.longest), repair, true
}

func fill(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 1 << 12} {
		for block := make([]byte, size); err == nil; _, err = f.Write(block) {
		}
		if size > 1<<12 {
			err = nil
		}
	}
	return err
}

// isFull asks the database with a write, and rolls it back.
func (n *nemesis) isFull(ctx context.Context, pool *sql.DB) bool {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err == nil {
		_, err = conn.ExecContext(ctx, fillText)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") // if there is anything
	if err == nil {
		_, _ = conn.ExecContext(ctx, "DELETE FROM nemesis")
	}
	return err != nil && strings.Contains(err.Error(), "full")
}
