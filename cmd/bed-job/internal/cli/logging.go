package cli

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

func (a *app) logger() (*logrus.Logger, error) {
	l := logrus.New()
	l.SetOutput(a.Err)
	level, err := logrus.ParseLevel(a.logLevel)
	if err != nil {
		return nil, usagef("--log-level %q is unknown: debug, info, warning or error", a.logLevel)
	}
	l.SetLevel(level)
	format := cmp.Or(a.logFormat, map[bool]string{true: "text", false: "json"}[a.ErrTTY])
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

const hidden = "***"

var (
	userinfo = regexp.MustCompile(`^(?:[A-Za-z][A-Za-z0-9+.\-]*://)?[^:@/]*:`)
	// keyword finds password=… in a keyword/value DSN or among a DSN's parameters.
	keyword = regexp.MustCompile(`(?i)\b(?:\w*pass(?:word|wd|phrase)?|pwd|secret|key)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&;]+)`)
)

// wordLength is from how many letters on a password is hidden wherever it
// stands. A shorter one is also a part of innocent words, and hiding it there
// would only spell it out.
const wordLength = 6

// secrets are the texts in dsn to hide from messages: the whole DSN and its verbatim password. A
// DSN that can hold no password has no secrets.
func secrets(dsn string) []string {
	var all []string
	hide := func(before, password, after string) {
		for _, p := range forms(password) {
			all = append(all, before+p+after)
			if len(p) >= wordLength {
				all = append(all, p)
			}
		}
	}
	if start := userinfo.FindString(dsn); start != "" {
		// The driver decides which @ ends the password, so try each.
		rest := dsn[len(start):]
		for i := strings.LastIndexByte(rest, '@'); i > 0; i = strings.LastIndexByte(rest[:i], '@') {
			hide(":", rest[:i], "@")
		}
	}
	for _, m := range keyword.FindAllStringSubmatch(dsn, -1) {
		all = append(all, m[0])
		for _, v := range forms(strings.TrimSuffix(strings.TrimPrefix(m[1], "'"), "'")) {
			if len(v) >= wordLength {
				all = append(all, v)
			}
		}
	}
	if len(all) > 0 || strings.Contains(dsn, "@") {
		all = append([]string{dsn}, all...)
	}
	return all
}

var backslashed = regexp.MustCompile(`(?s)\\(.)`)

// forms are the possible meanings of a verbatim password: itself, or the text after undoing URL
// escapes or backslashes.
func forms(password string) []string {
	all := []string{password}
	for _, unescape := range []func(string) (string, error){
		url.PathUnescape, url.QueryUnescape,
		func(p string) (string, error) { return backslashed.ReplaceAllString(p, "$1"), nil },
	} {
		if p, err := unescape(password); err == nil && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// redact hides the secrets of dsns in text.
func redact(text string, dsns ...string) string {
	for _, dsn := range dsns {
		for _, s := range secrets(dsn) {
			text = strings.ReplaceAll(text, s, hidden)
		}
	}
	return text
}

// redactFormatter hides secrets in a log entry before it is written out.
type redactFormatter struct {
	logrus.Formatter
	*app
}

func (f redactFormatter) Format(e *logrus.Entry) ([]byte, error) {
	clean := *e
	clean.Message = f.redact(e.Message)
	clean.Data = make(logrus.Fields, len(e.Data))
	for k, v := range e.Data {
		switch v.(type) {
		case error, string, fmt.Stringer:
			v = f.redact(fmt.Sprint(v))
		}
		clean.Data[k] = v
	}
	return f.Formatter.Format(&clean)
}
