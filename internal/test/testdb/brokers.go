package testdb

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PrivateNATS starts a private NATS server with JetStream for a test. Acknowledged messages survive
// a kill. extra are lines of its configuration. With -short the test is skipped; without the binary
// it fails with installation advice.
func PrivateNATS(t testing.TB, extra ...string) *Server {
	t.Helper()
	return private(t, recipe{
		kind: "nats", account: "nats",
		initialise: func(string) (*exec.Cmd, error) { return exec.Command("true"), nil },
		serve: func(dir string, port int, extra []string) (*exec.Cmd, error) {
			path := filepath.Join(dir, "nats.conf")
			text := fmt.Sprintf("listen: 127.0.0.1:%d\njetstream { store_dir: %q }\n%s\n", port, dir, strings.Join(extra, "\n"))
			//nolint:gosec // it is read by the account that the server runs as
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return nil, err
			}
			return command("nats-server", "nats-server", "-c", path)
		},
		dsn:        func(port int) string { return "nats://127.0.0.1:" + strconv.Itoa(port) },
		ready:      func(addr string) error { return greets(addr, "") },
		stopSignal: syscall.SIGTERM, orphanSignal: syscall.SIGKILL,
	}, extra)
}

// PrivateRabbitMQ is PrivateNATS for RabbitMQ. extra are options of Erlang's.
func PrivateRabbitMQ(t testing.TB, extra ...string) *Server {
	t.Helper()
	peers := keptPort(t)
	return private(t, recipe{
		kind: "rabbitmq", account: "rabbitmq",
		initialise: func(string) (*exec.Cmd, error) { return exec.Command("true"), nil },
		serve: func(dir string, port int, extra []string) (*exec.Cmd, error) {
			// The script in PATH would leave the process group.
			bin, err := findBinary("lib/rabbitmq/bin/rabbitmq-server", "apt-get install rabbitmq-server")
			if err != nil {
				return nil, err
			}
			return exec.Command("env", fmt.Sprintf("RABBITMQ_NODENAME=bed%d@localhost", port), "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
				fmt.Sprintf("RABBITMQ_NODE_PORT=%d", port), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", peers),
				"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "mnesia"), "RABBITMQ_LOG_BASE="+dir, "RABBITMQ_LOGS=-", "RABBITMQ_CONF_ENV_FILE=/dev/null",
				"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "none"), "RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "plugins"),
				// The daemon for finding nodes would outlive the test.
				fmt.Sprintf("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-start_epmd false -erl_epmd_port %d %s", peers, strings.Join(extra, " ")), bin), nil
		},
		dsn:        func(port int) string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port) },
		ready:      func(addr string) error { return greets(addr, "AMQP\x00\x00\x09\x01") },
		stopSignal: syscall.SIGTERM, orphanSignal: syscall.SIGKILL,
	}, extra)
}

// PrivateKafka is PrivateNATS for a server of Kafka's protocol: serve returns the command for
// listening on a port, with data in the working directory.
func PrivateKafka(t testing.TB, serve func(port int) *exec.Cmd) *Server {
	t.Helper()
	return private(t, recipe{
		kind: "kafka", account: "root",
		initialise: func(string) (*exec.Cmd, error) { return exec.Command("true"), nil },
		serve:      func(_ string, port int, _ []string) (*exec.Cmd, error) { return serve(port), nil },
		dsn:        func(port int) string { return "kafka://127.0.0.1:" + strconv.Itoa(port) },
		ready: func(addr string) error {
			conn, err := net.DialTimeout("tcp", addr, time.Second)
			if err == nil {
				_ = conn.Close()
			}
			return err
		},
		stopSignal: syscall.SIGTERM, orphanSignal: syscall.SIGKILL,
	}, nil)
}

// greets reports whether a server answers hello.
func greets(addr, hello string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err = conn.Write([]byte(hello)); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return err
}

// DSN is the server's, as bed-job's configuration takes it.
func (s *Server) DSN() string { return s.inst.recipe.dsn(s.inst.port) }
