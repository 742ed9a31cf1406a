package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// logger makes the logger from the flags.
func (a *app) logger() (*logrus.Logger, error) {
	l := logrus.New()
	l.SetOutput(a.Err)
	level, err := logrus.ParseLevel(a.logLevel)
	if err != nil {
		return nil, usagef("--log-level %q is unknown: debug, info, warning or error", a.logLevel)
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
		f = jsonFormat
	default:
		return nil, usagef("--log-format %q is unknown: text or json", format)
	}
	l.SetFormatter(redactFormatter{f, a})
	return l, nil
}

var jsonFormat = &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano, DisableHTMLEscape: true}

// fail reports why the command ends, complain reports an earlier problem. They write text for an
// operator, or a JSON line if log lines are JSON: in run and console, and in any command with
// --log-format json.
func (a *app) fail(text, hint string) { a.say(logrus.FatalLevel, text, hint) }
func (a *app) complain(text string)   { a.say(logrus.ErrorLevel, a.redact(text), "") }

func (a *app) say(level logrus.Level, text, hint string) {
	if a.logFormat != "json" {
		fmt.Fprintf(a.Err, "bed-job: %s\n", printable(text))
		if hint != "" {
			fmt.Fprintln(a.Err, hint)
		}
		return
	}
	l := logrus.New()
	l.SetOutput(a.Err)
	l.SetFormatter(jsonFormat)
	entry := logrus.NewEntry(l)
	if hint != "" {
		entry = entry.WithField("hint", hint)
	}
	entry.Log(level, text)
}

// redact hides the secrets of the configuration's data sources in text.
func (a *app) redact(text string) string {
	for _, s := range a.access {
		text = s.Hide(text)
	}
	return redact(text, a.dsns...)
}

// logFormatIn finds the format in an invalid command line.
func logFormatIn(args []string) string {
	for i, arg := range args {
		if format, ok := strings.CutPrefix(arg, "--log-format="); ok {
			return format
		}
		if arg == "--log-format" && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}
