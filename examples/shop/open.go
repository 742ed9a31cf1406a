package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
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
	"gorm.io/gorm/logger"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// settings locate the databases, the broker and the services.
type settings struct {
	// Log and Orders are DSNs of one MySQL or MariaDB server, Stock is one of any, Payments of
	// PostgreSQL, NATS a URL; or each but NATS is a file of SQLite, which also needs Keys. Without
	// NATS the broker is in memory, and loses unconsumed messages with the shop.
	Log, Orders, Keys, Stock, Payments, NATS string
	StockURL, PaymentsURL                    string
	Token                                    string // of the orders service with the others
	Topic                                    string // of the events
	// Patience is how long a database or a service may take until the job delivers.
	Patience time.Duration
}

// driverOf is SQLite's for a file, and otherwise the server's.
func driverOf(dsn, server string) string {
	if strings.HasPrefix(dsn, "file:") {
		return "sqlite"
	}
	return server
}

// resources are the data sources of a service, and what must be closed.
type resources struct {
	targets asyncjob.Targets // where a job in this process delivers
	closing []func() error
}

func (r *resources) close() error {
	var errs []error
	for i := len(r.closing) - 1; i >= 0; i-- {
		errs = append(errs, r.closing[i]())
	}
	r.closing = nil
	return errors.Join(errs...)
}

// orders holds the resources of the orders service.
type orders struct {
	resources
	topic   string
	storage *txlog.SQLStorage
	rows    *gorm.DB
	// atHome means that the log is on the server of the orders. Calls and messages then commit with
	// the order, as rows of one transaction.
	atHome bool
	// keys holds the requests' keys and responses: with the orders if atHome, otherwise in a file
	// of their own, because SQLite has one writer at a time. It is a pool of its own, because each
	// request holds one of its connections while it waits for one of the others.
	keys            *gorm.DB
	stock, payments *call.Service
	network         *network
	credentials     *bearer
	broker          *broker
	events          *bedmessage.Publisher
	subscriber      message.Subscriber
	acknowledged    atomic.Int64 // events
	metrics         *bedprom.Collector
}

func openOrders(ctx context.Context, s settings, n *network) (_ *orders, err error) {
	driver := driverOf(s.Log, "mysql")
	x := &orders{topic: cmp.Or(s.Topic, "orders-shipped"), atHome: driver != "sqlite", network: n, credentials: n.transport(s.Token)}
	defer func() {
		if err != nil {
			_ = x.close()
		}
	}()
	if x.storage, err = txlog.Open(ctx, driver, s.Log); err != nil {
		return nil, err
	}
	x.closing = append(x.closing, x.storage.Close)
	bus := listener.NewBus(nil)
	x.metrics = bedprom.New(bus)
	patience := cmp.Or(s.Patience, 2*time.Second)
	// The other services take a key once, and so do the databases: a retry does not charge twice.
	cfg := bedsql.Config{Storage: x.storage, Bus: bus, Guarantee: bedsql.ExactlyOnce, AttemptTimeout: patience, RetryTimeout: patience / 2}
	if x.rows, err = x.database("orders", driver, s.Orders, cfg, &order{}, &bill{}); err != nil {
		return nil, err
	}
	keys := "keys"
	if x.atHome {
		keys, s.Keys = "orders", s.Orders
	}
	if x.keys, err = x.database(keys, driver, s.Keys, cfg); err != nil {
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
	cfg.NoSyncRetry = true // the customer need not wait for a service that is away
	if x.stock, err = x.service("stock", s.StockURL, cfg); err != nil {
		return nil, err
	}
	x.payments, err = x.service("payments", s.PaymentsURL, cfg)
	return x, err
}

// service makes another service a data source. The log and bed-job's configuration use the same name
// for it.
func (x *orders) service(name, url string, cfg bedsql.Config) (*call.Service, error) {
	client := &http.Client{Transport: x.credentials}
	s, err := call.New(client, name, url, cfg)
	if err != nil {
		return nil, err
	}
	x.closing = append(x.closing, s.Close)
	x.targets[name], err = call.Target(client, name, url)
	return s, err
}

// database opens a database for gorm through bed. Its name is as that of a service.
func (r *resources) database(name, driver, dsn string, cfg bedsql.Config, tables ...any) (*gorm.DB, error) {
	read := map[string]func(string) (delivery.Target, error){"mysql": mysql.Target, "postgres": postgres.Target, "sqlite": sqlite.Target}
	target, err := read[driver](dsn)
	if err != nil {
		return nil, err
	}
	target.DataSource = name
	if r.targets == nil {
		r.targets = asyncjob.Targets{}
	}
	r.targets[name] = target
	connector, err := bedsql.NewConnector(target, cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(8)
	r.closing = append(r.closing, pool.Close)
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
func (x *orders) connect(ctx context.Context, url string) error {
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
