// Package webproxy puts the installed nginx or Caddy in front of a server of a test.
package webproxy

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// Nginx starts an nginx with the directives in its server block, and returns its address,
// host:port. It ends with the test. With -short the test is skipped; without nginx it fails.
func Nginx(t testing.TB, directives string) string {
	t.Helper()
	return start(t, "nginx", func(dir, address string) (conf string, args []string) {
		var temps strings.Builder
		for _, of := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			temps.WriteString(of + "_temp_path " + filepath.Join(dir, of) + "; ")
		}
		return "daemon off; master_process off; pid " + dir + "/pid; error_log stderr; events {}\nhttp { access_log off; " + temps.String() +
			"\nserver { listen " + address + "; " + directives + " } }\n", []string{"-e", "stderr", "-c"}
	})
}

// Caddy is [Nginx] with a Caddy and the directives in its site.
func Caddy(t testing.TB, directives string) string {
	t.Helper()
	return start(t, "caddy", func(_, address string) (conf string, args []string) {
		return "{\n\tadmin off\n\tauto_https off\n}\nhttp://:" + address[strings.LastIndex(address, ":")+1:] + " {\n\tbind 127.0.0.1\n" + directives + "\n}\n",
			[]string{"run", "--adapter", "caddyfile", "--config"}
	})
}

// start runs a proxy on a configuration and waits until it accepts connections.
func start(t testing.TB, name string, configure func(dir, address string) (conf string, args []string)) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs " + name)
	}
	program, err := exec.LookPath(name)
	if err != nil {
		program = filepath.Join("/usr/sbin", name)
	}
	l, kept, err := testdb.Listen(20000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	address := l.Addr().String()
	_ = l.Close()
	dir := t.TempDir()
	conf, args := configure(dir, address)
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append(args, file)...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install %s", err, name)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return address
		}
		select {
		case <-ended:
			t.Fatalf("%s ended: %s\n%s", name, &said, conf)
		case <-t.Context().Done():
			t.Fatalf("%s does not listen", name)
		case <-tick.C:
		}
	}
}
