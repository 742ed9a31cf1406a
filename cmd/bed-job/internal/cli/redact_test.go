package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/txlog"
)

var passwordDSNs = []string{
	"root:" + password + "@tcp(127.0.0.1:3306)/d?parseTime=true",
	"postgres://u:" + password + "@127.0.0.1:5432/d?application_name=a@b",
	"postgres://u:s3cr3t%2DPa55@127.0.0.1/d",
	"host=127.0.0.1 user=u password='" + password + "' dbname=d",
	"host=127.0.0.1 user=u PASSWORD = " + password + " dbname=d",
}

func TestNoFormOfADSNsPasswordSurvives(t *testing.T) {
	for _, dsn := range passwordDSNs {
		for _, message := range []string{dsn, "cannot parse `" + dsn + "`", "user u with " + password + " denied"} {
			if got := redact(message, dsn); strings.Contains(got, password) || strings.Contains(got, "s3cr3t%2DPa55") {
				t.Errorf("with %s: %s", dsn, got)
			}
		}
	}
}

func TestShortPasswordsAreHiddenWithoutSpoilingTheRest(t *testing.T) {
	got := redact("the data at root:da@tcp(h)/d", "root:da@tcp(h)/d")
	if got != "the data at ***" {
		t.Errorf("got %q", got)
	}
	if got := redact("file:/tmp/a.db is locked", "file:/tmp/a.db"); got != "file:/tmp/a.db is locked" {
		t.Errorf("a DSN that can hold no password was hidden: %q", got)
	}
}

func TestMessagesOfACommandHoldNoPassword(t *testing.T) {
	var out bytes.Buffer
	a := &app{Err: &out, Getenv: env(nil), Open: func(_ context.Context, log dataSource, _ bool) (txlog.Storage, error) {
		return nil, fmt.Errorf("%s: %w", log.dsn, io.EOF)
	}}
	for _, dsn := range passwordDSNs[:2] {
		config := filepath.Join(t.TempDir(), "bed-job.yaml")
		driver := map[bool]string{true: "postgres", false: "mysql"}[strings.HasPrefix(dsn, "postgres:")]
		write(t, config, fmt.Sprintf("transactionLogDataSource: {driver: %s, dsn: %q}\n", driver, dsn))
		for _, format := range []string{"text", "json"} {
			out.Reset()
			status := a.run(t.Context(), []string{"list", "-c", config, "--log-format", format})
			if s := out.String(); status != 1 || !strings.Contains(s, "EOF") || strings.Contains(s, password) {
				t.Errorf("status %d: %s", status, s)
			}
		}
	}
}

func TestLogLinesHoldNoPassword(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		a := &app{Err: &out, logFormat: format, logLevel: "info", dsns: passwordDSNs}
		log, err := a.logger()
		if err != nil {
			t.Fatal(err)
		}
		for _, dsn := range passwordDSNs {
			log.WithError(errors.New(dsn)).WithFields(logrus.Fields{"dsn": dsn, "why": "kept"}).Warn("cannot use " + dsn)
		}
		if s := out.String(); strings.Contains(s, password) || strings.Count(s, "kept") != len(passwordDSNs) {
			t.Errorf("%s", s)
		}
	}
}

// Whatever a password is made of, and however a DSN has to write it, no message
// shows it.
func FuzzNoPasswordOfADSNIsShown(f *testing.F) {
	for _, p := range []string{password, "p@ss:w/rd", `it's "quoted"`, `back\slash`, "sp ace", "a&b=c;d", "per%20cent", "päss\u2028wörd", "new\nline", "a+b+c+d", "????????", "pass=word"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if len(p) < wordLength || strings.ContainsAny(p, "*\x00") {
			return
		}
		quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(p) + "'"
		for _, dsn := range []string{
			"app:" + p + "@tcp(127.0.0.1:3306)/d?parseTime=true",
			(&url.URL{Scheme: "postgres", User: url.UserPassword("app", p), Host: "127.0.0.1:5432", Path: "/d"}).String(),
			"postgres://127.0.0.1/d?user=app&password=" + url.QueryEscape(p) + "&sslmode=disable",
			"host=127.0.0.1 user=app password=" + quoted + " dbname=d",
		} {
			for _, message := range []string{dsn, "login with [" + p + "] failed", fmt.Sprintf("cannot parse %q", dsn)} {
				if got := redact(message, dsn); strings.Contains(got, p) {
					t.Errorf("%q with the DSN %q is shown as %q", message, dsn, got)
				}
			}
		}
	})
}
