package slogger_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/internal/slogger"
)

func textTo(out *bytes.Buffer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestLinesKeepTheirLevelsAndFields(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]string{
		slog.LevelDebug: "level=DEBUG msg=d\nlevel=INFO msg=i\nlevel=WARN msg=w a=1 error=\"1205 (HY000)\"\nlevel=ERROR msg=e\n",
		slog.LevelError: "level=ERROR msg=e\n",
	} {
		var out bytes.Buffer
		other, hook := test.NewNullLogger()
		l := slogger.Of(other, textTo(&out, level))
		l.Debug("d")
		l.Info("i")
		l.WithField("error", errors.New("1205 (HY000)")).WithField("a", 1).Warn("w")
		l.Error("e")
		if out.String() != want || len(hook.AllEntries()) > 0 {
			t.Errorf("at %v the handler has\n%sand logrus %d lines", level, out.String(), len(hook.AllEntries()))
		}
	}
}

func TestANilLoggerIsNone(t *testing.T) {
	t.Parallel()
	own, _ := test.NewNullLogger()
	var none *slog.Logger
	if got := slogger.Of(own, none); got != own {
		t.Errorf("with a nil *slog.Logger the lines go to %v", got)
	}
	if got := slogger.Of(nil, nil); got != logrus.StandardLogger() {
		t.Errorf("by default the lines go to %v", got)
	}
}
