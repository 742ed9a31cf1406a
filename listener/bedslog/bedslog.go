// Package bedslog passes the log lines of bed, which uses logrus, to log/slog.
package bedslog

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"
)

// Logger returns a logger for bedsql.Config, asyncjob.Config or listener.NewBus. It passes
// each line of the levels that h has enabled to h. Fields become attributes, in lexical
// order. Fatal and panic lines become errors. Safe for concurrent use if h is.
func Logger(h slog.Handler) *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.SetFormatter(silent{})
	l.SetLevel(logrus.ErrorLevel)
	for _, level := range logrus.AllLevels {
		if h.Enabled(context.Background(), levelOf(level)) {
			l.SetLevel(max(l.GetLevel(), level))
		}
	}
	l.AddHook(hook{h})
	return l
}

// silent produces no output: the hook handles the line.
type silent struct{}

func (silent) Format(*logrus.Entry) ([]byte, error) { return nil, nil }

type hook struct{ h slog.Handler }

// Levels implements logrus.Hook.
func (hook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (k hook) Fire(e *logrus.Entry) error {
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := levelOf(e.Level)
	if !k.h.Enabled(ctx, level) {
		return nil
	}
	r := slog.NewRecord(e.Time.Round(0), level, e.Message, 0)
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		r.AddAttrs(slog.Any(key, plain(e.Data[key])))
	}
	return k.h.Handle(ctx, r)
}

// plain returns an error's text, because handlers would print the fields of the error.
func plain(v any) any {
	if err, ok := v.(error); ok {
		return err.Error()
	}
	return v
}

func levelOf(l logrus.Level) slog.Level {
	switch l {
	case logrus.TraceLevel:
		return slog.LevelDebug - 4
	case logrus.DebugLevel:
		return slog.LevelDebug
	case logrus.InfoLevel:
		return slog.LevelInfo
	case logrus.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}
