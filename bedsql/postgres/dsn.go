package postgres

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// registeredPrefix begins the DSNs of stdlib.RegisterConnConfig.
const registeredPrefix = "registeredConnConfig"

// Target reads a DSN of pgx's form (a URL, keywords and values, or the name of a registered
// configuration), with the environment and the service file, as pgx does. It returns the
// bare driver's connector with bed's knowledge of the data source. bedDataSource names it in
// the log:
//
//	postgres://user:password@host:5432/orders?bedDataSource=orders
//	host=/run/postgresql dbname=orders bedDataSource='orders'
//	registeredConnConfig0 bedDataSource=orders
//
// The default is the addresses and the database, "127.0.0.1:5432/orders"; with a DialFunc or
// LookupFunc of the application, the name is required. bedReceiptSchema is the target's
// ReceiptSchema; it is not available with a registered configuration. Errors never repeat
// the DSN, which may hold a password.
func Target(dsn string) (delivery.Target, error) { return hooked(dsn, nil) }

// hooked is Target with a function that is called before each dial; nil for none.
func hooked(dsn string, before logdb.Before) (delivery.Target, error) {
	cfg, own, connector, err := readDSN(dsn)
	switch {
	case err != nil:
		return delivery.Target{}, err
	case connector != nil && before != nil:
		return delivery.Target{}, errors.New("postgres: a registered configuration cannot be changed before a dial: use a DSN")
	case connector != nil:
		return describe(cfg, connector, own), nil
	}
	t := target(cfg, own, stdlib.OptionBeforeConnect(func(ctx context.Context, c *pgx.ConnConfig) error {
		// The file of passwords may have changed.
		if now, err := pgx.ParseConfig(dsn); err == nil {
			c.Password = now.Password
		}
		if before == nil {
			return nil
		}
		return before(ctx, c)
	}))
	return t, attempt.CheckReceiptSchema(&t)
}

// readDSN returns the configuration of a DSN, and a connector if it names a registered
// configuration.
func readDSN(dsn string) (cfg *pgx.ConnConfig, own dialects.Own, connector driver.Connector, err error) {
	if strings.HasPrefix(dsn, registeredPrefix) {
		return readRegistered(dsn)
	}
	if cfg, err = pgx.ParseConfig(dsn); err != nil {
		return nil, own, nil, dsnError(err)
	}
	cfg.RuntimeParams, own, err = dialects.TakeOwn(name, cfg.RuntimeParams)
	return cfg, own, nil, err
}

// readRegistered reads "registeredConnConfig0 bedDataSource=name", or with a question mark
// between them.
func readRegistered(dsn string) (cfg *pgx.ConnConfig, own dialects.Own, connector driver.Connector, err error) {
	if i := strings.IndexAny(dsn, " ?"); i >= 0 {
		params := dsn[i:]
		if dsn[i] == '?' {
			params = "postgres://" + params
		}
		if _, own, _, err = readDSN(params); err != nil {
			return nil, own, nil, err
		}
		dsn = dsn[:i]
	}
	if connector, err = stdlib.GetDefaultDriver().(driver.DriverContext).OpenConnector(dsn); err != nil {
		return nil, own, nil, err
	}
	registered, err := registeredConfig(connector)
	if err != nil {
		return nil, own, nil, err
	}
	if _, its, _ := dialects.TakeOwn(name, registered.RuntimeParams); own.ReceiptSchema+its.ReceiptSchema != "" {
		return nil, own, nil, errors.New("postgres: " + attempt.SchemaParam + " cannot be used with a registered configuration: use TargetOf")
	}
	return &pgx.ConnConfig{Config: *registered}, own, connector, nil
}

// TargetOf is [Target] for a configuration and the options of stdlib.GetConnector. An empty
// dataSource means the name derived from its addresses and database. bedReceiptSchema may be
// among its RuntimeParams.
func TargetOf(cfg *pgx.ConnConfig, dataSource string, opts ...stdlib.OptionOpenDB) delivery.Target {
	cfg = cfg.Copy()
	var own dialects.Own
	cfg.RuntimeParams, own, _ = dialects.TakeOwn(name, cfg.RuntimeParams)
	own.DataSource = cmp.Or(dataSource, own.DataSource)
	return target(cfg, own, opts...)
}

func target(cfg *pgx.ConnConfig, own dialects.Own, opts ...stdlib.OptionOpenDB) delivery.Target {
	t := describe(cfg, stdlib.GetConnector(*cfg, opts...), own)
	t.With = dialects.Applying(func(list []dialects.Setting) (delivery.Target, error) {
		return with(cfg, t.DataSource, list, opts), nil
	})
	return t
}

func describe(cfg *pgx.ConnConfig, c driver.Connector, own dialects.Own) delivery.Target {
	list := settings(&cfg.Config, cfg.DefaultQueryExecMode, own.ReceiptSchema)
	derived := ""
	if own.DataSource == "" {
		derived = dataSource(&cfg.Config)
	}
	d := dialectOf(c)
	d.Namespace = cfg.Database
	return delivery.Target{
		Connector:     &connector{c, namesOf(list), derived},
		Dialect:       d,
		DataSource:    cmp.Or(own.DataSource, derived),
		Settings:      dialects.Format(list),
		Account:       cfg.User,
		ReceiptSchema: own.ReceiptSchema,
	}
}

// registeredConfig finds the configuration behind a registered name. The registry does not
// return it, but the error of a failed dial holds it, and this dial is cancelled before it
// begins.
func registeredConfig(connector driver.Connector) (*pgconn.Config, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	conn, err := connector.Connect(ctx)
	if err == nil { // a dial function that does not look at its context
		defer func() { _ = conn.Close() }()
		if c, ok := conn.(*stdlib.Conn); ok {
			return &c.Conn().Config().Config, nil
		}
	}
	var dial *pgconn.ConnectError
	if !errors.As(err, &dial) {
		return nil, errors.New("postgres: the DSN is the name of a configuration that is not registered: " +
			"use what stdlib.RegisterConnConfig returned, and do not unregister it before")
	}
	return dial.Config, nil
}

// dataSource names a data source by its location: each address once, in the order of
// attempts. An unnamed database is the user's. It is empty if a function of the application
// decides the address.
func dataSource(cfg *pgconn.Config) string {
	if usual := usualConfig(); foreign(cfg.DialFunc, usual.DialFunc) || foreign(cfg.LookupFunc, usual.LookupFunc) {
		return ""
	}
	addrs := []string{address(cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks {
		if addr := address(f.Host, f.Port); !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return strings.Join(addrs, ",") + "/" + cmp.Or(cfg.Database, cfg.User)
}

// usualConfig has pgx's own functions.
var usualConfig = sync.OnceValue(func() *pgconn.Config {
	cfg, err := pgconn.ParseConfig("host=h")
	if err != nil {
		return new(pgconn.Config)
	}
	return cfg
})

// foreign reports whether f is not the usual function.
func foreign(f, usual any) bool {
	v := reflect.ValueOf(f)
	return !v.IsNil() && v.Pointer() != reflect.ValueOf(usual).Pointer()
}

func address(host string, port uint16) string {
	_, addr := pgconn.NetworkAddress(host, port)
	return addr
}

// parseErrors are the errors of the driver's parser, without their quotes from the DSN.
var parseErrors = []struct{ text, meaning string }{
	{"failed to parse as URL", "it is no URL of the form postgres://user:password@host:port/database?param=value; escape what is special in it"},
	{"failed to parse as keyword/value", "it is not of the form keyword=value keyword='value'"},
	{"failed to read service", "the service or the service file cannot be found"},
	{"failed to configure TLS", "the TLS settings (ssl…) cannot be used"},
	{"invalid port", "a port is not a number from 1 to 65535"},
	{"port numbers to", "there are several ports, but not one for each host"},
	{"invalid connect_timeout", "connect_timeout is not a number of seconds"},
	{"invalid sslcertmode", "sslcertmode is none of disable, allow and require"},
	{"unknown target_session_attrs", "target_session_attrs has an unknown value"},
	{"protocol_version", "the protocol versions cannot be used"},
	{"channel_binding", "channel_binding has an unknown value"},
	{"require_auth", "require_auth has an unknown value"},
	{"default_query_exec_mode", "default_query_exec_mode has an unknown value"},
	{"statement_cache_capacity", "statement_cache_capacity is not a number"},
	{"description_cache_capacity", "description_cache_capacity is not a number"},
}

func dsnError(err error) error {
	text := err.Error()
	// The text quotes the DSN between backquotes.
	text = text[strings.LastIndexByte(text, '`')+1:]
	for _, e := range parseErrors {
		if strings.Contains(text, e.text) {
			return errors.New("postgres: the DSN cannot be read: " + e.meaning)
		}
	}
	return errors.New("postgres: the DSN cannot be read")
}
