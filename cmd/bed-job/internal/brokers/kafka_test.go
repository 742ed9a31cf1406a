package brokers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// TestMain turns the process started by onKafka into a server of Kafka's protocol.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "kafka" {
		port, _ := strconv.Atoi(os.Args[2])
		if _, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir("data"), kfake.SeedTopics(4, "orders", "both")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

func onKafka(t *testing.T) *carrier {
	server := testdb.PrivateKafka(t, func(port int) *exec.Cmd { return exec.Command(os.Args[0], "kafka", strconv.Itoa(port)) })
	target, err := brokers.Targets["kafka"](server.DSN(), nil)
	must(t, err)
	topics := map[string][]string{"group": {"orders", "both"}, "again": {"both"}}
	return &carrier{driver: "kafka", dsn: server.DSN(), server: server, publisher: &confirming{sql.OpenDB(target.Connector)}, topic: "orders", both: "both",
		consume: func(ctx context.Context, group string, handle func(*message.Message) error) {
			client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics[group]...),
				kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			defer client.CloseAllowingRebalance()
			for ctx.Err() == nil {
				fetched := client.PollRecords(ctx, 64)
				var partitions sync.WaitGroup
				fetched.EachPartition(func(p kgo.FetchTopicPartition) {
					partitions.Go(func() {
						for _, r := range p.Records {
							for ctx.Err() == nil && handle(message.NewMessage(headers(r)[broker.UUIDHeader], r.Value)) != nil {
								time.Sleep(time.Millisecond)
							}
						}
					})
				})
				partitions.Wait()
				if ctx.Err() == nil {
					_ = client.CommitRecords(ctx, fetched.Records()...) // else they come again
				}
				client.AllowRebalance()
			}
		}}
}

func headers(r *kgo.Record) map[string]string {
	all := map[string]string{}
	for _, h := range r.Headers {
		all[h.Key] = string(h.Value)
	}
	return all
}

// newKafka is a server in this process with the topic orders and messages of up to most bytes. It
// hangs up on messages selected by lost.
func newKafka(t *testing.T, most int, lost func() bool) (cluster *kfake.Cluster, dsn string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "orders"), kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(most)}))
	must(t, err)
	t.Cleanup(cluster.Close)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if lost() {
			return nil, errors.New("lost"), true
		}
		return nil, nil, false
	})
	return cluster, "kafka://" + cluster.ListenAddrs()[0]
}

func TestKafkaThatNeverAnswersIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	_, dsn := newKafka(t, 1000, func() bool { return true })
	target, err := brokers.Targets["kafka"](dsn, nil)
	must(t, err)
	db := sql.OpenDB(target.Connector)
	defer db.Close()
	text, args, err := broker.Statement(&broker.Message{ID: entry.NewID(), Topic: "orders", Payload: []byte("one")})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := db.ExecContext(ctx, text, args...); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it says %v", err)
	}
}

func TestJobPublishesToKafka(t *testing.T) {
	t.Parallel()
	var produced atomic.Int64
	cluster, dsn := newKafka(t, 1000, func() bool { return produced.Add(1) == 1 })
	log := txlog.NewMemory()
	good := &broker.Message{Topic: "orders", Metadata: map[string]string{"tenant": "a", broker.OrderKey: "o-1"}, Payload: []byte("one")}
	unsent(t, log, good)
	if r := round(t, log, "kafka", dsn); r.Delivered != 1 {
		t.Errorf("the round: %v", r)
	}
	if produced.Load() < 2 {
		t.Error("no message was lost")
	}
	for _, r := range consumer(t, cluster).PollFetches(t.Context()).Records() { // once, or several times the same
		if h := headers(r); string(r.Value) != "one" || string(r.Key) != "o-1" || h[broker.UUIDHeader] != good.ID || h["tenant"] != "a" {
			t.Errorf("published: %q, %v", r.Value, h)
		}
	}
	unsent(t, log, &broker.Message{Topic: "nowhere", Payload: []byte("two")}, &broker.Message{Topic: "orders", Payload: make([]byte, 2000)})
	if r := round(t, log, "kafka", dsn); r.Failed != 1 || r.Parked != 1 {
		t.Errorf("an unknown topic fails, a message too large is parked: %v", r)
	}
	left, err := log.List(t.Context(), txlog.Filter{})
	must(t, err)
	for _, u := range left {
		if u.InDoubt || u.Parked != strings.Contains(u.LastError, kerr.MessageTooLarge.Message) {
			t.Errorf("the log: %+v", u)
		}
	}
	cluster.Close()
	if r := round(t, log, "kafka", dsn); r.Claimed != 0 {
		t.Errorf("while the broker is down: %v", r)
	}
}

func TestKafkaTakesThePasswordInEachMechanism(t *testing.T) {
	t.Parallel()
	for mechanism, parameter := range map[string]string{"PLAIN": "", "SCRAM-SHA-256": "?sasl=scram-sha-256", "SCRAM-SHA-512": "?sasl=scram-sha-512"} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.EnableSASL(), kfake.Superuser(mechanism, "ann", "s3cr3t/@"))
		must(t, err)
		t.Cleanup(cluster.Close)
		publish := func(ctx context.Context, password string) error {
			target, err := brokers.Targets["kafka"]("kafka://ann:"+url.QueryEscape(password)+"@"+cluster.ListenAddrs()[0]+parameter, nil)
			must(t, err)
			db := sql.OpenDB(target.Connector)
			defer db.Close()
			text, args, err := broker.Statement(&broker.Message{ID: entry.NewID(), Topic: "orders", Payload: []byte("one")})
			must(t, err)
			_, err = db.ExecContext(ctx, text, args...)
			return err
		}
		if err := publish(t.Context(), "s3cr3t/@"); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the client tries for as long as it may
		defer cancel()
		if err := publish(ctx, "s3cr3t"); err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: another password is answered %v", mechanism, err)
		}
	}
}

func consumer(t *testing.T, of *kfake.Cluster) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(of.ListenAddrs()...), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// Messages under one key must go to the same partition from the application and from the job, or
// they lose their order. Watermill's publisher for Kafka is sarama's.
func TestKafkaPartitionsByKeyAsWatermillOrAsJava(t *testing.T) {
	t.Parallel()
	sarama := func(key string, partitions int32) int32 { // its hashPartitioner
		h := fnv.New32a()
		_, _ = h.Write([]byte(key))
		p := int32(h.Sum32()) % partitions
		return max(p, -p)
	}
	// murmur2, as Kafka's own tests of it have it.
	java := map[string]int32{"21": -973932308, "foobar": -790332482, "abc": 479470107, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829}
	for parameter, want := range map[string]func(key string) int32{
		"":                     func(key string) int32 { return sarama(key, 4) },
		"?partitioner=murmur2": func(key string) int32 { return java[key] & math.MaxInt32 % 4 },
	} {
		cluster, dsn := newKafka(t, 1000, func() bool { return false })
		log := txlog.NewMemory()
		for key := range java {
			unsent(t, log, &broker.Message{Topic: "orders", Metadata: map[string]string{broker.OrderKey: key}})
		}
		if r := round(t, log, "kafka", dsn+parameter); r.Delivered != len(java) {
			t.Errorf("%q: the round: %v", parameter, r)
		}
		for client, left := consumer(t, cluster), len(java); left > 0; {
			for _, r := range client.PollFetches(t.Context()).Records() {
				left--
				if key := string(r.Key); r.Partition != want(key) {
					t.Errorf("%q: %s is in partition %d, not %d", parameter, key, r.Partition, want(key))
				}
			}
		}
	}
}

func TestLimitOfAMessageIsTheKafkaBrokers(t *testing.T) {
	t.Parallel()
	_, dsn := newKafka(t, 5_000_000, func() bool { return false })
	log := txlog.NewMemory()
	unsent(t, log, &broker.Message{Topic: "orders", Payload: make([]byte, 2_000_000)}, &broker.Message{Topic: "orders", Payload: make([]byte, 6_000_000)})
	if r := round(t, log, "kafka", dsn); r.Delivered != 1 || r.Parked != 1 {
		t.Errorf("of 2 and 6 MB at a limit of 5 MB: %v", r)
	}
	left, err := log.List(t.Context(), txlog.Filter{})
	must(t, err)
	if len(left) != 1 || left[0].InDoubt || !strings.Contains(left[0].LastError, kerr.MessageTooLarge.Message) {
		t.Errorf("the log: %+v", left)
	}
}

func TestDSNsOfBrokersAreReadWithoutConnecting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		driver, dsn string
		good        bool
	}{
		{"nats", "nats://user:s3cr3t@a:4222,b:4222", true},
		{"nats", "nats://a:4222?credentials=/etc/nats.creds", true},
		{"nats", "nats://user:s3cr3t%25%2F%3F@a:4222", true},
		{"nats", "nats://user:s3cr3t%ss@a:4222", false},
		{"nats", "nats://user:s3cr3t/s3cr3t@a:4222", false},
		{"nats", "nats://user:s3cr3t?s3cr3t@a:4222", false},
		{"nats", "nats://user:1?s3cr3t@a:4222", false},
		{"nats", "nats://user:s3cr3t,s3cr3t@a:4222", false},
		{"nats", "nats://user:s3cr3t#s3cr3t@a:4222", false},
		{"nats", "nats://user:1#s3cr3t@a:4222", false},
		{"nats", "nats://[::1]:4222, token@b:4222,", true},
		{"nats", "nats://user:s3cr3t@a:4222?credential=x", false},
		{"nats", "http://user:s3cr3t@a", false},
		{"amqp", "amqp://user:s3cr3t@a:5672/vhost", true},
		{"amqp", "amqps://user:s3cr3t@a/?topic=key&exchange=events", true},
		{"amqp", "amqp://user:s3cr3t@a/?topic=key", false},
		{"amqp", "amqp://user:s3cr3t@a/?topic=exchanges", false},
		{"amqp", "kafka://user:s3cr3t@a", false},
		{"amqp", "amqp://user:s3cr3t@a/?heartbeat=5&channel_max=9", true},
		{"amqp", "amqp://user:s3cr3t@a/?frame_max=4096", false},
		{"amqp", "amqp://user:1?s3cr3t@a", false},
		{"kafka", "kafka://user:s3cr3t@a:9092,b:9092?tls=true", true},
		{"kafka", "kafka://a", true},
		{"kafka", "kafka://a?partitioner=murmur2", true},
		{"kafka", "kafka://user:s3cr3t@a?partitioner=random", false},
		{"kafka", "kafka://user:s3cr3t@a?sasl=scram-sha-256", true},
		{"kafka", "kafka://user:s3cr3t@a?sasl=gssapi", false},
		{"kafka", "kafka://a?sasl=scram-sha-512", false},
		{"kafka", "kafka://", false},
		{"kafka", "kafka://user:s3cr3t@a?tls=maybe", false},
		{"kafka", "kafka://user:s3cr3t@a?acks=0", false},
	} {
		_, err := brokers.Targets[c.driver](c.dsn, nil)
		if (err == nil) != c.good {
			t.Errorf("%s %s: %v", c.driver, c.dsn, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s quotes the password: %v", c.driver, err)
		}
	}
}
