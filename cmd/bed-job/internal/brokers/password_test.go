package brokers_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// A wrong password in the file is an outage that costs no try, and the next round reads the file
// again.
func TestPasswordOfAFileIsReadAtEachConnection(t *testing.T) {
	t.Parallel()
	kafka := func(mechanism, parameter string) func(*testing.T) string {
		return func(t *testing.T) string {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.EnableSASL(), kfake.Superuser(mechanism, "job", "s3cr3t-Pa55"))
			must(t, err)
			t.Cleanup(cluster.Close)
			return "kafka://job@" + cluster.ListenAddrs()[0] + parameter
		}
	}
	for name, c := range map[string]struct {
		driver string
		dsn    func(*testing.T) string
	}{
		"nats": {"nats", func(t *testing.T) string {
			server := testdb.PrivateNATS(t, "authorization { users: [{user: admin, password: a}, {user: job, password: s3cr3t-Pa55}] }")
			newStream(t, server, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}, nats.UserInfo("admin", "a"))
			return "nats://job@" + server.Addr()
		}},
		"nats's token": {"nats", func(t *testing.T) string {
			server := testdb.PrivateNATS(t, "authorization { token: s3cr3t-Pa55 }")
			newStream(t, server, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}, nats.Token("s3cr3t-Pa55"))
			return "nats://" + server.Addr()
		}},
		"amqp": {"amqp", func(t *testing.T) string {
			server := testdb.PrivateRabbitMQ(t, `-rabbit default_user <<"job">>`, `-rabbit default_pass <<"s3cr3t-Pa55">>`)
			conn, err := amqp.Dial("amqp://job:s3cr3t-Pa55@" + server.Addr())
			must(t, err)
			defer conn.Close()
			ch, err := conn.Channel()
			must(t, err)
			_, err = ch.QueueDeclare("orders", true, false, false, false, nil)
			must(t, err)
			return "amqp://job@" + server.Addr()
		}},
		"kafka":                 {"kafka", kafka("PLAIN", "")},
		"kafka's SCRAM-SHA-256": {"kafka", kafka("SCRAM-SHA-256", "?sasl=scram-sha-256")},
		"kafka's SCRAM-SHA-512": {"kafka", kafka("SCRAM-SHA-512", "?sasl=scram-sha-512")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("-short: starts a private server")
			}
			file, log := filepath.Join(t.TempDir(), "password"), txlog.NewMemory()
			keys, err := access.New(access.Keys{PasswordFile: file}, "")
			must(t, err)
			target, err := brokers.Targets[c.driver](c.dsn(t), keys)
			must(t, err)
			job, err := asyncjob.New(log, asyncjob.Targets{"events": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: 1})
			must(t, err)
			defer job.Close()
			unsent(t, log, &broker.Message{Topic: "orders", Payload: []byte("one")})
			for _, password := range []string{"", "s3cr3t-old", "s3cr3t-Pa55"} {
				must(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
				r := runOnce(t, job)
				if right := password == "s3cr3t-Pa55"; r.Claimed != 0 && !right || r.Delivered != 1 && right {
					t.Errorf("with the password %q: %v, %v", password, r, r.DataSources["events"].Unreachable)
				}
			}
		})
	}
}
