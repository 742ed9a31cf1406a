package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// hasher runs commands without a configuration.
type hasher struct{ app }

func (h *hasher) run(t *testing.T, args ...string) run {
	t.Helper()
	var out, err bytes.Buffer
	h.Out, h.Err = &out, &err
	return run{h.app.run(t.Context(), args), out.String(), err.String()}
}

func TestHashesAreWhatTheConsoleTakes(t *testing.T) {
	h := &hasher{}
	for in, want := range map[string]string{"s3cr3t pass\n": "s3cr3t pass", "s3cr3t": "s3cr3t", " s3cr3t \r\nmore": " s3cr3t "} {
		h.In = strings.NewReader(in)
		r := h.run(t, "hash")
		if err := bcrypt.CompareHashAndPassword([]byte(strings.TrimSpace(r.out)), []byte(want)); err != nil || r.status != 0 || r.err != "" || strings.Contains(r.out, "s3cr3t") {
			t.Errorf("%q: %v, %+v", in, err, r)
		}
		h.In = strings.NewReader(in)
		sum := sha256.Sum256([]byte(want))
		h.run(t, "hash", "--token").want(t, 0, hex.EncodeToString(sum[:])+"\n")
	}
	for in, says := range map[string]string{"": "empty", "\n": "empty", strings.Repeat("x", 73): "at most 72"} {
		h.In = strings.NewReader(in)
		if r := h.run(t, "hash"); r.status != 1 || r.out != "" || !strings.Contains(r.err, says) {
			t.Errorf("%q: %+v", in, r)
		}
	}
	if r := h.run(t, "hash", "s3cr3t"); r.status != 2 || strings.Contains(r.out, "$2") {
		t.Errorf("a password as an argument: %+v", r)
	}
}

func TestAuditNamesTheAccountOfTheProcess(t *testing.T) {
	h := newHarness(t, newLog(t))
	own := processAccount()
	if own == "" || os.Geteuid() == 0 && own != "root" {
		t.Fatalf("the account is %q", own)
	}
	host, _ := os.Hostname()
	for _, c := range []struct {
		env  map[string]string
		adds string
	}{
		{nil, ""},
		{map[string]string{"USER": own}, ""},
		{map[string]string{"USER": "mallory", "LOGNAME": "mallory"}, ` (USER "mallory")`},
		{map[string]string{"USER": "mallory", "SUDO_USER": "ann"}, ` (SUDO_USER "ann")`},
		{map[string]string{"SUDO_USER": "a\x1b[31m\u202e\n\xff"}, ` (SUDO_USER "a\x1b[31m\u202e\n?")`},
		{map[string]string{"SUDO_USER": strings.Repeat("x", 5000)}, ` (SUDO_USER "` + strings.Repeat("x", 39) + `…")`},
	} {
		h.Getenv = func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }
		by := h.by("")
		if want := "bed-job " + own + "@" + host + c.adds; by.Who != want {
			t.Errorf("with %q: %q, want %q", c.env, by.Who, want)
		}
		if err := by.Check("retry"); err != nil {
			t.Error(err)
		}
	}
}
