package brokers_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unsent writes messages to a log with an unreachable broker.
func unsent(t *testing.T, log txlog.Storage, messages ...*broker.Message) {
	t.Helper()
	target := broker.AnyForm.Target("events", func(context.Context) (broker.Conn, error) { return nil, errors.New("no route") })
	connector, err := bedsql.NewConnector(target, bedsql.Config{Storage: log, NoSyncRetry: true})
	must(t, err)
	db := sql.OpenDB(connector)
	defer db.Close()
	for _, m := range messages {
		m.ID = entry.NewID()
		m.UUID = m.ID
		text, args, err := broker.Statement(m)
		must(t, err)
		if _, err := db.ExecContext(t.Context(), text, args...); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("a message that cannot be sent: %v", err)
		}
	}
}

func newJob(t *testing.T, log txlog.Storage, driver, dsn string, tries int) *asyncjob.Job {
	t.Helper()
	target, err := brokers.Targets[driver](dsn, nil)
	must(t, err)
	job, err := asyncjob.New(log, asyncjob.Targets{"events": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: tries, ProbeTimeout: 30 * time.Second})
	must(t, err)
	return job
}

func round(t *testing.T, log txlog.Storage, driver, dsn string) asyncjob.Report {
	t.Helper()
	job := newJob(t, log, driver, dsn, 2)
	defer job.Close()
	return runOnce(t, job)
}

func runOnce(t *testing.T, job *asyncjob.Job) asyncjob.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, err := job.RunOnce(ctx)
	must(t, err)
	return report
}

// A broker's restart breaks a job's idle connections. No message uses a broken one.
func TestBrokersRestartCostsNoTry(t *testing.T) {
	t.Parallel()
	for driver, on := range map[string]func(*testing.T) *carrier{"nats": onNATS, "kafka": onKafka} { // for RabbitMQ see its alarm
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			at, log := on(t), txlog.NewMemory()
			job := newJob(t, log, at.driver, at.dsn, 1)
			defer job.Close()
			target, err := brokers.Targets[at.driver](at.dsn, nil)
			must(t, err)
			db := sql.OpenDB(target.Connector)
			defer db.Close()
			kept, err := db.Conn(t.Context())
			must(t, err)
			defer kept.Close()
			for _, when := range []string{"before", "after"} {
				unsent(t, log, &broker.Message{Topic: at.topic, Payload: []byte("one")})
				if r := runOnce(t, job); r.Delivered != 1 {
					t.Errorf("%s the restart: %v", when, r)
				}
				at.server.Stop()
				at.server.Start()
			}
			text, args, err := broker.Statement(&broker.Message{ID: entry.NewID(), Topic: at.topic})
			must(t, err)
			if _, err := kept.ExecContext(t.Context(), text, args...); err != nil && target.Dialect.Class(err) != dialect.Unreachable {
				t.Errorf("a message that met a connection that was gone: %v", err)
			}
		})
	}
}

// silent is an address that accepts connections and never sends.
func silent(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// A silent server in a cluster is no outage of the others.
func TestSilentServerIsNoOutageOfItsCluster(t *testing.T) {
	t.Parallel()
	for driver, on := range map[string]func(*testing.T) *carrier{"nats": onNATS, "kafka": onKafka} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			at, log := on(t), txlog.NewMemory()
			dead := silent(t)
			address := at.server.Addr()
			for _, dsn := range []string{driver + "://" + dead + "," + address, driver + "://" + address + "," + dead, driver + "://" + dead + "," + silent(t) + "," + address} {
				unsent(t, log, &broker.Message{Topic: at.topic, Payload: []byte("one")})
				if r := round(t, log, driver, dsn); r.Delivered != 1 {
					t.Errorf("%s: %v", dsn, r)
				}
			}
		})
	}
}

func wantNoDoubt(t *testing.T, log txlog.Storage) {
	t.Helper()
	left, err := log.List(t.Context(), txlog.Filter{})
	must(t, err)
	for _, u := range left {
		if u.InDoubt {
			t.Errorf("it is in doubt: %s", u.LastError)
		}
	}
}

// Some calls of brokers' clients take no context: the publisher stops waiting for them.
func TestBrokerThatStandsStillIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for driver, server := range map[string]*testdb.Server{"nats": testdb.PrivateNATS(t), "amqp": testdb.PrivateRabbitMQ(t)} {
		target, err := brokers.Targets[driver](server.DSN(), nil)
		must(t, err)
		db := sql.OpenDB(target.Connector)
		must(t, db.PingContext(t.Context()))
		server.Pause()
		text, args, err := broker.Statement(&broker.Message{ID: entry.NewID(), Topic: "orders", Payload: []byte("one")})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		if _, err := db.ExecContext(ctx, text, args...); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 30*time.Second {
			t.Errorf("%s: %v after %v", driver, err, time.Since(began))
		}
		cancel()
		server.Resume()
		must(t, db.Close())
	}
}

// Spans name the broker as OpenTelemetry does.
func TestEachBrokerHasItsNameInOpenTelemetry(t *testing.T) {
	t.Parallel()
	want := map[string][2]string{"nats": {"nats://a:4222", "nats"}, "amqp": {"amqp://a:5672/", "rabbitmq"}, "kafka": {"kafka://a:9092", "kafka"}}
	for driver, read := range brokers.Targets {
		target, err := read(want[driver][0], nil)
		must(t, err)
		if got := target.Dialect.System; got != want[driver][1] || got == "" {
			t.Errorf("%s is called %q", driver, got)
		}
	}
	if got := broker.AnyForm.System(); got != "watermill" {
		t.Errorf("an unknown publisher is called %q", got)
	}
}
