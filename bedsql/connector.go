package bedsql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

// NewConnector wraps a target's connector for sql.OpenDB. target must have a Connector, and a
// DataSource, the name of the database in the log and in the job's configuration. The databases'
// packages have a NewConnector that sets their Dialect. Without a Dialect, errors are classified
// by their SQLSTATE alone, statements are read as standard SQL, and ExactlyOnce is an error. If
// the Settings differ from those of the job's target, the job delivers only to a target with a
// With. Mistakes in cfg are errors, all at once.
func NewConnector(target delivery.Target, cfg Config) (driver.Connector, error) {
	if target.Connector == nil {
		return nil, errors.New("bed: the connector to wrap is nil")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	wrap, err := newConnector(target, cfg)
	if err != nil {
		return nil, err
	}
	wrap.driver, wrap.foreign = target.Connector.Driver(), true
	return wrap, nil
}

// connector is one opened database: the state that its connections share.
type connector struct {
	target    *target.Source
	dialect   *dialect.Dialect
	isSQL     bool // its data source is a database: see sqltext.Flavor.IsSQL
	cfg       Config
	texts     *sqltext.Cache
	deliverer *besteffort.Deliverer
	// receipts describe the receipts of writes through this connector.
	receipts attempt.Receipts
	// dials counts the dials for the application, and reaches has what is known of logs, by their storage: see home.reach.
	dials   atomic.Int64
	reaches sync.Map
	// shared is the error of a logged write if the log is in the target's own file: see sharedFile.
	shared error
	// session is the resolved session of the last dial; nil before.
	session atomic.Pointer[string]
	guard   *guard
	// corrected means that a log line has named the overridden settings of the server.
	corrected atomic.Bool
	// keys is the data source for writes under keys.
	keys *keyed.Source
	// warned means that a log line has named the trouble with the server's product.
	warned atomic.Bool
	// returned means that a log line has described the treatment of connections with session
	// state.
	returned atomic.Bool
	// foreign means that the connector comes from the application and may change a session beyond
	// its DSN.
	foreign bool
	pool    *target.Pool
	log     logrus.FieldLogger
	driver  driver.Driver

	// origin is the application's connector, if this one serves connections with changed settings.
	// changes are the statements behind the changes.
	origin  *connector
	changes []string
	mu      sync.Mutex
	// changed has those connectors by their settings.
	changed map[string]*connector
}

// maxChanged bounds changed.
const maxChanged = 32

var _ io.Closer = (*connector)(nil)

func newConnector(t delivery.Target, cfg Config) (*connector, error) {
	if t.Dialect == nil {
		t.Dialect = &dialect.Dialect{Name: "sql"}
	}
	if t.DataSource == "" {
		return nil, errors.New("bed: the data source has no name: give one, or the DSN parameter bedDataSource " +
			"(none is derived where a dial function, a network or a connector of the application's decides the address)")
	}
	if len(t.DataSource) > 255 {
		return nil, fmt.Errorf("bed: the data source's name is %d bytes long, 255 is the most that the log can keep: give a shorter one by the DSN parameter bedDataSource", len(t.DataSource))
	}
	if t.AutocommitOff {
		return nil, fmt.Errorf("bed: the DSN of %s turns autocommit off, which would leave every write uncommitted: remove it from the DSN and use transactions", t.DataSource)
	}
	if cfg.Guarantee == ExactlyOnce {
		if err := leavesReceipts(t.Dialect, t.DataSource); err != nil {
			return nil, err
		}
	}
	if err := attempt.CheckReceiptSchema(&t); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	log := cfg.Logger.WithField("data_source", t.DataSource)
	if err := nameSettings(&t, &cfg, log); err != nil {
		return nil, err
	}
	c := &connector{
		dialect: t.Dialect,
		isSQL:   t.Dialect.Flavor.IsSQL(),
		cfg:     cfg,
		texts:   sqltext.NewCache(t.Dialect.Flavor),
		log:     log,
		shared:  sharedFile(t, cfg),
		changed: map[string]*connector{},
	}
	c.reach(t, attempt.Receipts{
		LogIdentity: cfg.Storage.Identity(), Retention: cfg.ReceiptRetention, KeyRetention: cfg.KeyRetention,
	})
	c.guard = newGuard(&cfg, t.Dialect, log)
	t.Dialect.Know()
	logdb.Journal(cfg.Storage).TellOff(log.Warn, journal.Audit, journal.DataSources)
	c.deliverer = besteffort.New(besteffort.Config{
		Storage:                 cfg.Storage,
		Tally:                   logdb.Journal(cfg.Storage).Tally(t.DataSource),
		Dialect:                 t.Dialect,
		SyncMaxDeliveryTryTimes: cfg.SyncMaxDeliveryTryTimes,
		RetryInitial:            cfg.RetryInitial,
		RetryMax:                cfg.RetryMax,
		AttemptTimeout:          cfg.AttemptTimeout,
		RetryTimeout:            cfg.RetryTimeout,
		Lease:                   cfg.Lease,
		LogTimeout:              cfg.LogTimeout,
		RunUnlogged:             cfg.RunUnlogged,
		Unlogged:                &cfg.Counters.AppliedUnlogged,
		Unclassified:            &cfg.Counters.Unclassified,
		Erase:                   c.eraseReceipts,
		// SQLite has one writer at a time: an application with one connection is never locked out.
		EraseInTurn: t.Dialect.Flavor == sqltext.SQLite,
		Bus:         cfg.Bus,
		Logger:      cfg.Logger,
	})
	return c, nil
}

// Bounds of a connector's own connections, in use or idle: for retries after the caller's connection
// is gone, for staged soft transactions, and for erasing receipts.
const maxOwnConns = 32

// reach sets the target of c, and the configuration of its receipts.
func (c *connector) reach(t delivery.Target, r attempt.Receipts) {
	c.target = target.New(t, r, c.cfg.Storage, c.cfg.LogTimeout)
	named := c.cfg.SessionSettings
	c.target.Named, c.target.Roams = len(named) > 0, slices.Contains(named, "search_path") || slices.Contains(named, "role")
	c.receipts = c.target.Receipts
	c.keys = &keyed.Source{Name: t.DataSource, Flavor: t.Dialect.Flavor, Log: c.log}
	c.pool = c.target.NewPool(maxOwnConns, c.dial)
}

// onPool runs f as one attempt on a connection of the pool.
func (c *connector) onPool(ctx context.Context, checked bool, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	if c.target.Named {
		f = c.fresh(ctx, f)
	}
	out, dialled := c.pool.On(ctx, checked, f)
	if !dialled {
		out.Class = c.dialClass(out.Err)
	}
	return out
}

// leavesReceipts returns an error if a write to a dialect's database cannot leave a receipt.
func leavesReceipts(d *dialect.Dialect, dataSource string) error {
	if d.ReceiptDuplicate != nil || d.Peer != nil {
		return nil
	}
	return fmt.Errorf("bed: the dialect %q of the data source %s knows no receipts, without which nothing is delivered ExactlyOnce or under an idempotency key: "+
		"open it by bedsql/mysql, bedsql/postgres or bedsql/sqlite, or choose AtLeastOnce", d.Name, dataSource)
}

// Connect implements driver.Connector. It does not dial: a write must meet a database that is
// down, because only the write is logged. The connection dials on first use.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	return &Conn{c: c}, nil
}

func (c *connector) Driver() driver.Driver { return c.driver }

// Close implements io.Closer: sql.DB.Close calls it. It waits a little for repeated removals from
// the log, and closes the wrapped connector too if it can.
func (c *connector) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.LogTimeout)
	defer cancel()
	c.deliverer.Close(ctx)
	_ = c.pool.Close()
	c.mu.Lock()
	for _, changed := range c.changed {
		_ = changed.pool.Close()
	}
	c.mu.Unlock()
	if closer, ok := c.target.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// dial opens a bare connection, with the facts of its session.
func (c *connector) dial(ctx context.Context) (attempt.Session, error) {
	conn, facts, err := target.Dial(ctx, &c.target.Target)
	if facts.Corrected != "" && !c.corrected.Swap(true) {
		c.log.WithField("settings", facts.Corrected).Warn("bed: the server's defaults would leave writes uncommitted that were answered; " +
			"bed sets them otherwise on its connections: name them in the DSN to say so yourself")
	}
	if facts.Warning != "" && !c.warned.Swap(true) {
		c.log.Warn("bed: " + facts.Warning)
	}
	for i := 0; i < len(c.changes) && err == nil; i++ {
		if _, _, err = attempt.Exec(ctx, conn, c.changes[i], nil); err != nil {
			_ = conn.Close()
		}
	}
	if last := c.session.Load(); err == nil && (last == nil || *last != facts.Session) {
		c.session.Store(&facts.Session)
	}
	return attempt.Session{Conn: conn, Facts: facts}, err
}

// dialClass is the class of a failed dial. A refused log-in is never final: credentials rotate, an
// account is locked for a while. Another refusal (an unknown database) is final only until one dial
// has succeeded; after that a database is being restored. A write waits for the end of that in the
// log, as the job does.
func (c *connector) dialClass(err error) dialect.Class {
	class := c.dialect.DialClass(err)
	if class == dialect.Refused && (c.origin != nil || c.session.Load() != nil || dberr.Of(err).NotAdmitted()) {
		return dialect.Unreachable
	}
	return class
}

// with returns the connector for a connection of c after the statement change has changed its
// settings; nil if there are too many.
func (c *connector) with(settings, change string) *connector {
	origin := cmp.Or(c.origin, c)
	place := c.target.Known(false) // a transaction may be open, which has looked for it
	if settings == origin.target.Settings {
		origin.target.Adopt(place)
		return origin
	}
	origin.mu.Lock()
	defer origin.mu.Unlock()
	if known := origin.changed[settings]; known != nil {
		known.target.Adopt(place)
		return known
	}
	if len(origin.changed) == maxChanged {
		return nil
	}
	n := &connector{
		dialect: origin.dialect, isSQL: origin.isSQL, cfg: origin.cfg, texts: origin.texts, deliverer: origin.deliverer,
		guard: origin.guard, foreign: origin.foreign, log: origin.log, driver: origin.driver,
		origin: origin, changes: append(slices.Clip(c.changes), change),
	}
	t := origin.target.Target
	t.Settings = settings
	n.reach(t, origin.receipts)
	n.target.Adopt(place)
	origin.changed[settings] = n
	return n
}

// sendsMessages reports whether the connector's data source is a broker.
func (c *connector) sendsMessages() bool { return c.dialect.Flavor == sqltext.Messages }

// leftOpen is the error of an unlogged write.
func (c *connector) leftOpen(err error) error {
	if err == nil {
		return nil
	}
	return besteffort.LeftOpen(c.target.DataSource, attempt.Failed(c.dialect, err, false), nil)
}
