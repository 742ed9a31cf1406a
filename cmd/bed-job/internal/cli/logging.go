package cli

import (
	"time"

	"github.com/sirupsen/logrus"
)

// logger makes the logger that the flags ask for. dsns are those whose
// secrets must not be written.
func (a *app) logger(dsns ...string) (*logrus.Logger, error) {
	l := logrus.New()
	l.SetOutput(a.Err)
	level, err := logrus.ParseLevel(a.logLevel)
	if err != nil {
		return nil, usagef(nil, "--log-level %q is unknown: debug, info, warning or error", a.logLevel)
	}
	l.SetLevel(level)
	format := a.logFormat
	if format == "" {
		format = "json"
		if a.ErrTTY {
			format = "text"
		}
	}
	var f logrus.Formatter
	switch format {
	case "text":
		f = &logrus.TextFormatter{FullTimestamp: true, TimestampFormat: time.RFC3339, ForceColors: a.ErrTTY, DisableColors: !a.ErrTTY}
	case "json":
		f = &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano, DisableHTMLEscape: true}
	default:
		return nil, usagef(nil, "--log-format %q is unknown: text or json", format)
	}
	l.SetFormatter(redactFormatter{Formatter: f, dsns: dsns})
	return l, nil
}
