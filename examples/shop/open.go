package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	gormsqlite "github.com/libtnb/sqlite"
	"github.com/nats-io/nats.go/jetstream"
	gormmysql "gorm.io/driver/mysql"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// settings locate the databases and the broker.
type settings struct {
	// Log, Orders and Stock are DSNs of one MySQL or MariaDB server, Ledger is a DSN of
	// PostgreSQL, NATS a URL. Without Log every database is SQLite, in a directory that disappears
	// with the shop. The broker is then in memory, and loses unconsumed messages with the shop.
	Log, Orders, Stock, Ledger, NATS string
	Topic                            string // of the events
	// Patience is how long a database may take for a write until the job delivers it.
	Patience time.Duration
}

// shop holds the resources of the requests, the consumer and the faults.
type shop struct {
	topic                 string
	storage               *txlog.SQLStorage
	orders, ledger, stock *gorm.DB
	// atHome means that the log is on the server of the orders. Writes for other databases then
	// commit with the order, as rows of one transaction.
	atHome bool
	// keys holds the requests' keys and responses: with the orders if atHome, otherwise in a file
	// of their own, because SQLite has one writer at a time. It is a pool of its own, because each
	// request holds one of its connections while it waits for one of the others.
	keys         *gorm.DB
	broker       *broker
	events       *bedmessage.Publisher
	subscriber   message.Subscriber
	acknowledged atomic.Int64 // events
	metrics      *bedprom.Collector
	targets      asyncjob.Targets // where a job in this process delivers
	closing      []func() error
}

func open(ctx context.Context, s settings) (_ *shop, err error) {
	x := &shop{topic: cmp.Or(s.Topic, "orders-shipped"), atHome: s.Log != "", targets: asyncjob.Targets{}}
	defer func() {
		if err != nil {
			_ = x.close()
		}
	}()
	mysqlOr, postgresOr, keysDSN := "mysql", "postgres", ""
	if !x.atHome {
		mysqlOr, postgresOr = "sqlite", "sqlite"
		dir, err := os.MkdirTemp("", "bed-shop")
		if err != nil {
			return nil, err
		}
		x.closing = append(x.closing, func() error { return os.RemoveAll(dir) })
		for name, dsn := range map[string]*string{"log": &s.Log, "orders": &s.Orders, "stock": &s.Stock, "ledger": &s.Ledger, "keys": &keysDSN} {
			*dsn = "file:" + filepath.Join(dir, name+".db") + "?_pragma=busy_timeout(200)&_pragma=journal_mode(WAL)"
		}
	}
	if x.storage, err = txlog.Open(ctx, mysqlOr, s.Log); err != nil {
		return nil, err
	}
	x.closing = append(x.closing, x.storage.Close)
	bus := listener.NewBus(nil)
	x.metrics = bedprom.New(bus)
	patience := cmp.Or(s.Patience, 2*time.Second)
	// The stock must be reduced only once.
	cfg := bedsql.Config{Storage: x.storage, Bus: bus, Guarantee: bedsql.ExactlyOnce, AttemptTimeout: patience, RetryTimeout: patience / 2}
	if x.orders, err = x.database("orders", mysqlOr, s.Orders, cfg, &order{}); err != nil {
		return nil, err
	}
	if x.stock, err = x.database("stock", mysqlOr, s.Stock, cfg, &article{}); err != nil {
		return nil, err
	}
	if x.ledger, err = x.database("ledger", postgresOr, s.Ledger, cfg, &debt{}, &bill{}); err != nil {
		return nil, err
	}
	keys := "keys"
	if x.atHome {
		keys, keysDSN = "orders", s.Orders
	}
	if x.keys, err = x.database(keys, mysqlOr, keysDSN, cfg); err != nil {
		return nil, err
	}
	if err := x.connect(ctx, s.NATS); err != nil {
		return nil, err
	}
	if x.events, err = bedmessage.NewPublisher(x.broker, "events", cfg, bedmessage.Confirms()); err != nil {
		return nil, err
	}
	x.closing = append(x.closing, x.subscriber.Close, x.events.Close)
	if x.targets["events"], err = bedmessage.Target(x.broker, "events", bedmessage.Confirms()); err != nil {
		return nil, err
	}
	// The stock of a newly opened shop. The pears are for the load.
	stock := x.stock.WithContext(bedsql.Unlogged(ctx)).Clauses(clause.OnConflict{DoNothing: true})
	return x, stock.Create([]article{{"apple", 10}, {"pear", 1_000_000}}).Error
}

// database opens a database for gorm through bed. The log and bed-job's configuration use the same
// name for it.
func (x *shop) database(name, driver, dsn string, cfg bedsql.Config, tables ...any) (*gorm.DB, error) {
	read := map[string]func(string) (delivery.Target, error){"mysql": mysql.Target, "postgres": postgres.Target, "sqlite": sqlite.Target}
	target, err := read[driver](dsn)
	if err != nil {
		return nil, err
	}
	target.DataSource = name
	x.targets[name] = target
	connector, err := bedsql.NewConnector(target, cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(8)
	x.closing = append(x.closing, pool.Close)
	dialector := map[string]gorm.Dialector{
		"mysql":    gormmysql.New(gormmysql.Config{Conn: pool}),
		"postgres": gormpostgres.New(gormpostgres.Config{Conn: pool}),
		"sqlite":   gormsqlite.New(gormsqlite.Config{Conn: pool}),
	}
	db, err := gorm.Open(dialector[driver], &gorm.Config{SkipDefaultTransaction: true, Logger: logger.Discard})
	if err != nil {
		return nil, err
	}
	return db, db.AutoMigrate(tables...)
}

// eventsLast is how long the broker keeps an event, and may deliver it again.
const eventsLast = 5 * 24 * time.Hour

// connect makes the publisher and the subscriber of the broker.
func (x *shop) connect(ctx context.Context, url string) error {
	if url == "" {
		memory := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1000}, nil)
		x.broker, x.subscriber = &broker{Publisher: memory}, memory
		return nil
	}
	durable := func(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
		c, err := js.CreateOrUpdateConsumer(ctx, topic, jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
		return c, nil, err
	}
	stream := func(topic string) jetstream.StreamConfig {
		return jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, MaxAge: eventsLast}
	}
	subscriber, err := wmjetstream.NewSubscriber(wmjetstream.SubscriberConfig{
		URL: url, ConfigureStream: stream, ResourceInitializer: durable, Logger: watermill.NopLogger{},
	})
	if err != nil {
		return err
	}
	publisher, err := wmjetstream.NewPublisher(wmjetstream.PublisherConfig{URL: url, Logger: watermill.NopLogger{}})
	if err != nil {
		return errors.Join(err, subscriber.Close())
	}
	x.broker, x.subscriber = &broker{Publisher: publisher}, subscriber
	return subscriber.SubscribeInitialize(x.topic) // makes the stream
}

// broker is a publisher that a fault can take down, or make publish twice.
type broker struct {
	message.Publisher
	down, twice atomic.Bool
}

func (b *broker) Publish(topic string, messages ...*message.Message) error {
	if b.down.Load() {
		return errors.New("the broker is down")
	}
	if b.twice.Load() {
		messages = append(messages, messages...)
	}
	return b.Publisher.Publish(topic, messages...)
}

func (x *shop) close() error {
	var errs []error
	for i := len(x.closing) - 1; i >= 0; i-- {
		errs = append(errs, x.closing[i]())
	}
	x.closing = nil
	return errors.Join(errs...)
}
