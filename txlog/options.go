package txlog

import (
	"time"

	"github.com/sirupsen/logrus"
)

type options struct {
	create   bool
	maxConns int
	grace    time.Duration

	minWrites, maxWrites int

	noActivity bool

	logger logrus.FieldLogger
}

// The defaults of the options.
const (
	defaultMaxConns = 32
	defaultGrace    = 3 * time.Second

	defaultMinWrites = 1
	defaultMaxWrites = 8
)

// Option changes how [Open] opens a log.
type Option func(*options)

// WithoutCreate makes [Open] fail when a table is not there, instead of
// creating it.
func WithoutCreate() Option { return func(o *options) { o.create = false } }

// WithMaxConns sets how many connections to the log's database may be open at
// a time. Defaults to 32; to 1 for SQLite, where writers queue better within
// the process than at the file. Values below 1 mean the default.
func WithMaxConns(n int) Option { return func(o *options) { o.maxConns = n } }

// WithLogger sets the logger for warnings, once when the log is opened, of what
// weakens the promise: settings of the log's server (a Galera cluster's), or a product
// that is not tested. Defaults to logrus's standard logger.
func WithLogger(l logrus.FieldLogger) Option { return func(o *options) { o.logger = l } }

// WithGrace sets for how long after the end of the caller's context a write to the
// log whose outcome is not known is still repeated. Defaults to 3 s. Values below 0
// mean not at all.
func WithGrace(d time.Duration) Option { return func(o *options) { o.grace = d } }

// WithWritesInFlight bounds how many joined writes are under way at a time, each
// of what several callers add or of what they remove. Between least and most the
// log goes by the round trip to the database: as many as keep it busy. What comes
// while they are under way leaves together as soon as one of them is answered.
// Defaults to 1 and 8; always 1 for SQLite, where additions and removals
// leave in one transaction. Values below 1 mean the defaults, and more
// connections than [WithMaxConns] are not used.
func WithWritesInFlight(least, most int) Option {
	return func(o *options) { o.minWrites, o.maxWrites = least, most }
}

// WithoutActivity keeps no account of what became of the writes of each minute.
// Otherwise it is added up in memory and written to the table bed_activity every few
// seconds, where it is kept for seven days. Jobs also learn there that applications
// write to a data source, and yield to those that tell.
func WithoutActivity() Option { return func(o *options) { o.noActivity = true } }
