// Package slogger chooses the logger of a configuration, and passes lines to a *slog.Logger.
// It does not import log/slog, which the core must not link.
package slogger

import (
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/sirupsen/logrus"
)

// Logger is a *slog.Logger.
type Logger interface {
	Debug(msg string, args ...any)
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
	Error(msg string, args ...any)
}

// Of returns the logger for a configuration's two fields: to unless it is nil, else l, else
// logrus's standard logger. Fields become attributes, in lexical order.
func Of(l logrus.FieldLogger, to Logger) logrus.FieldLogger {
	if v := reflect.ValueOf(to); v.IsValid() && !(v.Kind() == reflect.Pointer && v.IsNil()) {
		passing := logrus.New()
		passing.SetOutput(io.Discard)
		passing.SetLevel(logrus.DebugLevel)
		passing.AddHook(hook{to})
		return passing
	}
	if l == nil {
		return logrus.StandardLogger()
	}
	return l
}

type hook struct{ to Logger }

// Levels implements logrus.Hook.
func (hook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (k hook) Fire(e *logrus.Entry) error {
	var args []any
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		v := e.Data[key]
		if err, ok := v.(error); ok {
			v = err.Error() // handlers would print its fields
		}
		args = append(args, key, v)
	}
	write := [...]func(string, ...any){logrus.WarnLevel: k.to.Warn, logrus.InfoLevel: k.to.Info, logrus.DebugLevel: k.to.Debug, logrus.TraceLevel: k.to.Debug}[e.Level]
	if write == nil {
		write = k.to.Error
	}
	write(e.Message, args...)
	return nil
}
