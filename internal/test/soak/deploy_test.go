package soak

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// build is set by the linker in the next build of the application.
var build = firstBuild

const firstBuild, nextBuild = "first", "next"

// build makes the programs. A long run has a second build of each: a release
// with a stamp and settings of its own.
func (o *options) build(t *testing.T, long bool) {
	t.Helper()
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	const job, self = "github.com/bedsql/bed/cmd/bed-job", "github.com/bedsql/bed/internal/test/soak"
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.apps, o.bedJobs = []string{exe}, []string{filepath.Join(dir, "bed-job")}
	run("build", "-buildvcs=false", "-o", o.bedJobs[0], job)
	if !long {
		return
	}
	o.apps, o.bedJobs = append(o.apps, filepath.Join(dir, "next-app")), append(o.bedJobs, filepath.Join(dir, "next-bed-job"))
	run("test", "-c", "-buildvcs=false", "-ldflags", "-X "+self+".build="+nextBuild, "-o", o.apps[1], self)
	run("build", "-buildvcs=false", "-ldflags", "-X "+job+"/internal/cli.stamp=v0.999.0", "-o", o.bedJobs[1], job)
}

// deploy starts the next release of a process while the old one still works, and
// asks the old one to end. The first of each kind stays: releases work side by
// side.
func (n *nemesis) deploy(of []*process, start func(int)) (time.Duration, func(), bool) {
	i := 1 + n.rng.IntN(len(of)-1)
	old := of[i]
	if n.busy[old] || !n.began(old) {
		return 0, nil, false
	}
	n.release++
	start(i)
	old.signal(syscall.SIGTERM)
	n.replaced = append(n.replaced, old)
	return 0, nil, true
}

// began is whether a process is as far as to end in order when it is asked to: an
// application has its journal, a job has said something.
func (w *world) began(p *process) bool {
	name := p.name + ".out"
	if strings.HasPrefix(p.name, "app") {
		name = p.name + ".journal"
	}
	info, err := os.Stat(filepath.Join(w.dir, name))
	return err == nil && (info.Size() > 0 || strings.HasPrefix(p.name, "app"))
}
