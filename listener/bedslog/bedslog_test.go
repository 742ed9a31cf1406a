package bedslog_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/bedsql/bed/listener/bedslog"
)

// In an application: bedsql.Config{Logger: bedslog.Logger(slog.Default().Handler())}.
func ExampleLogger() {
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime})
	logger := bedslog.Logger(handler)
	logger.WithField("data_source", "orders").WithField("error", errors.New("1205 (HY000)")).Warn("bed: the write is left to the job")
	// Output: level=WARN msg="bed: the write is left to the job" data_source=orders error="1205 (HY000)"
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func TestTheHandlerSaysWhichLevelsItTakes(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]string{
		slog.LevelDebug: "level=DEBUG msg=d\nlevel=INFO msg=i\nlevel=WARN msg=w\nlevel=ERROR msg=e\n",
		slog.LevelInfo:  "level=INFO msg=i\nlevel=WARN msg=w\nlevel=ERROR msg=e\n",
		slog.LevelError: "level=ERROR msg=e\n",
	} {
		var out bytes.Buffer
		l := bedslog.Logger(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level, ReplaceAttr: withoutTime}))
		l.Debug("d")
		l.Info("i")
		l.Warn("w")
		l.Error("e")
		if out.String() != want {
			t.Errorf("at %v the handler was given\n%s", level, out.String())
		}
		if enabled := l.IsLevelEnabled(5); enabled != (level == slog.LevelDebug) {
			t.Errorf("at %v debug lines are made: %v", level, enabled)
		}
	}
}
