package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/txlog"
	driver "github.com/go-sql-driver/mysql"
)

// broken in the environment is the address of a server that breaks every connection. The test
// binary is then an application writing to it.
const broken = "BED_TEST_BROKEN_SERVER"

func TestDriverLogLinesAreDropped(t *testing.T) {
	t.Parallel()
	if addr := os.Getenv(broken); addr != "" {
		meetBrokenServer(t, addr)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	defer func() {
		_ = l.Close()
		<-done
	}()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), broken+"="+l.Addr().String())
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	if errs.Len() > 0 {
		t.Errorf("past the logger went\n%s", errs.String())
	}
	if want := "the application's own: "; !strings.Contains(out.String(), want) {
		t.Errorf("%q is missing in\n%s", want, out.String())
	}
}

type ownLogger struct{}

func (ownLogger) Print(args ...any) {
	logrus.Print(append([]any{"the application's own: "}, args...)...)
}

func meetBrokenServer(t *testing.T, addr string) {
	logrus.SetOutput(os.Stdout)
	log := logrus.New()
	log.SetOutput(os.Stdout)
	log.SetLevel(logrus.DebugLevel)
	dsn := "root@tcp(" + addr + ")/d?bedDataSource=orders"
	cfg := bedsql.Config{Storage: txlog.NewMemory(), Logger: log, NoSyncRetry: true}
	if err := mysql.Register("bed-broken", cfg); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("bed-broken", dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("DELETE FROM a WHERE id = 1"); !errors.Is(err, bedsql.ErrPending) {
		t.Errorf("the write: %v", err)
	}
	_ = db.Close()
	tgt, err := mysql.Target(dsn)
	if err != nil {
		t.Fatal(err)
	}
	job, err := asyncjob.New(cfg.Storage, asyncjob.Targets{"orders": tgt}, asyncjob.Config{Logger: log, MaxDeliveryTryDelay: asyncjob.NoDelay})
	if err != nil {
		t.Fatal(err)
	}
	if report, err := job.RunOnce(context.Background()); err != nil || report.DataSources["orders"].Unreachable == nil {
		t.Errorf("the job: %v, %v", report, err)
	}
	_ = job.Close()
	if _, err := txlog.Open(context.Background(), "mysql", dsn); err == nil {
		t.Error("the log was opened")
	}
	own, err := driver.ParseDSN("root@tcp(" + addr + ")/d")
	if err != nil {
		t.Fatal(err)
	}
	own.Logger = ownLogger{}
	if tgt, err = mysql.TargetOf(own, "own"); err != nil {
		t.Fatal(err)
	}
	if _, err := tgt.Connector.Connect(context.Background()); err == nil {
		t.Error("the broken server was connected to")
	}
}
