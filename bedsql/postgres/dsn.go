package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// dataSourceParam names the data source in a DSN. The driver never sees it.
const dataSourceParam = "bedDataSource"

// registeredPrefix begins the DSNs that stdlib.RegisterConnConfig hands out.
const registeredPrefix = "registeredConnConfig"

// Target reads a DSN of pgx's form (a URL, keywords and values, or the name of
// a registered configuration), with the environment and the service file that
// pgx reads too, and returns the bare driver's connector with all that bed knows
// of the data source. bedDataSource names it in the log:
//
//	postgres://user:password@host:5432/orders?bedDataSource=orders
//	host=/run/postgresql dbname=orders bedDataSource='orders'
//	registeredConnConfig0 bedDataSource=orders
//
// Without it the name is the addresses and the database,
// "127.0.0.1:5432/orders". bedReceiptSchema is the target's ReceiptSchema; not
// with the name of a registered configuration. Errors say what is wrong without repeating the DSN,
// which may hold a password.
func Target(dsn string) (delivery.Target, error) {
	cfg, connector, name, err := readDSN(dsn)
	if err != nil {
		return delivery.Target{}, err
	}
	cfg, schema, named := takeReceiptSchema(cfg)
	switch {
	case !named:
		return target(cfg, connector, name, "", nil), nil
	case schema == "":
		return delivery.Target{}, errors.New("postgres: " + attempt.SchemaParam + " in the DSN is empty: name the schema for receipts or leave the parameter out")
	case cfg.DefaultQueryExecMode == 0:
		return delivery.Target{}, errors.New("postgres: " + attempt.SchemaParam + " cannot be used with a registered configuration: use TargetOf")
	}
	t := target(cfg, stdlib.GetConnector(*cfg), name, schema, nil)
	return t, attempt.CheckReceiptSchema(&t)
}

// readDSN gives what a DSN leads to, and the name in its bedDataSource.
func readDSN(dsn string) (cfg *pgx.ConnConfig, connector driver.Connector, name string, err error) {
	name, bare, err := splitDataSource(dsn)
	if err != nil {
		return nil, nil, "", err
	}
	if connector, err = openConnector(bare); err != nil {
		return nil, nil, "", err
	}
	if strings.HasPrefix(bare, registeredPrefix) {
		registered, err := registeredConfig(connector)
		if err != nil {
			return nil, nil, "", err
		}
		return &pgx.ConnConfig{Config: *registered}, connector, name, nil
	}
	parsed, err := pgx.ParseConfig(bare)
	if err != nil {
		return nil, nil, "", dsnError(err)
	}
	// A service file may name the data source as well.
	if service, ok := parsed.RuntimeParams[dataSourceParam]; ok {
		delete(parsed.RuntimeParams, dataSourceParam)
		if name == "" {
			name = service
		}
		connector = stdlib.GetConnector(*parsed)
	}
	return parsed, connector, name, nil
}

// TargetOf is [Target] for a configuration and the options that
// stdlib.GetConnector takes. An empty dataSource stands for the name derived
// from its addresses and database. bedReceiptSchema may be among its
// RuntimeParams.
func TargetOf(cfg *pgx.ConnConfig, dataSource string, opts ...stdlib.OptionOpenDB) delivery.Target {
	cfg, schema, _ := takeReceiptSchema(cfg)
	return target(cfg, stdlib.GetConnector(*cfg, opts...), dataSource, schema, opts)
}

// takeReceiptSchema takes bedReceiptSchema out of what the driver would set in
// the session.
func takeReceiptSchema(cfg *pgx.ConnConfig) (bare *pgx.ConnConfig, schema string, named bool) {
	params := maps.Clone(cfg.RuntimeParams)
	for key, value := range params {
		if strings.EqualFold(key, attempt.SchemaParam) {
			schema, named = strings.TrimSpace(value), true
			delete(params, key)
		}
	}
	if !named {
		return cfg, "", false
	}
	if cfg.DefaultQueryExecMode != 0 { // its parser made it
		bare = cfg.Copy()
	} else {
		bare = &pgx.ConnConfig{Config: cfg.Config}
	}
	bare.RuntimeParams = params
	return bare, schema, true
}

func target(cfg *pgx.ConnConfig, c driver.Connector, name, schema string, opts []stdlib.OptionOpenDB) delivery.Target {
	if name == "" {
		name = dataSource(&cfg.Config)
	}
	t := delivery.Target{
		Connector:     &connector{c},
		Dialect:       dialect,
		DataSource:    name,
		Settings:      settings(&cfg.Config, cfg.DefaultQueryExecMode, schema),
		ReceiptSchema: schema,
		OlderSettings: olderSettings(&cfg.Config),
	}
	if cfg.DefaultQueryExecMode != 0 { // pgx wants a configuration that its parser made
		t.With = func(settings string) (delivery.Target, error) { return with(cfg, name, settings, opts) }
	}
	return t
}

func openConnector(bare string) (driver.Connector, error) {
	d, ok := stdlib.GetDefaultDriver().(driver.DriverContext)
	if !ok {
		return nil, errors.New("postgres: this version of pgx gives no connectors")
	}
	return d.OpenConnector(bare)
}

// registeredConfig finds the configuration behind a registered name. The registry
// does not hand it out, but the error of a failed dial holds it, and this dial is
// cancelled before it begins.
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

// dataSource names a data source by where it is: each address once, in the
// order in which they are tried. A database that is not named is the user's.
func dataSource(cfg *pgconn.Config) string {
	addrs := []string{address(cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks {
		if addr := address(f.Host, f.Port); !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	database := cfg.Database
	if database == "" {
		database = cfg.User
	}
	return strings.Join(addrs, ",") + "/" + database
}

func address(host string, port uint16) string {
	_, addr := pgconn.NetworkAddress(host, port)
	return addr
}

// parseErrors are the errors of the driver's parser, without the pieces of the
// DSN that their texts quote.
var parseErrors = []struct{ text, meaning string }{
	{"failed to parse as URL", "it is no URL of the form postgres://user:password@host:port/database?param=value; escape what is special in it"},
	{"failed to parse as keyword/value", "it is not of the form keyword=value keyword='value'"},
	{"failed to read service", "the service or the service file cannot be found"},
	{"failed to configure TLS", "the TLS settings (ssl…) cannot be used"},
	{"invalid port", "a port is no number from 1 to 65535"},
	{"port numbers to", "there are several ports, but not one for each host"},
	{"invalid connect_timeout", "connect_timeout is no number of seconds"},
	{"invalid sslcertmode", "sslcertmode is none of disable, allow and require"},
	{"unknown target_session_attrs", "target_session_attrs has an unknown value"},
	{"protocol_version", "the protocol versions cannot be used"},
	{"channel_binding", "channel_binding has an unknown value"},
	{"require_auth", "require_auth has an unknown value"},
	{"default_query_exec_mode", "default_query_exec_mode has an unknown value"},
	{"statement_cache_capacity", "statement_cache_capacity is no number"},
	{"description_cache_capacity", "description_cache_capacity is no number"},
}

func dsnError(err error) error {
	text := err.Error()
	// The DSN itself stands between backquotes.
	text = text[strings.LastIndexByte(text, '`')+1:]
	for _, e := range parseErrors {
		if strings.Contains(text, e.text) {
			return errors.New("postgres: the DSN cannot be read: " + e.meaning)
		}
	}
	return errors.New("postgres: the DSN cannot be read")
}

// lowerKeys spells the names of run-time parameters one way.
func lowerKeys(params map[string]string) map[string]string {
	out := make(map[string]string, len(params))
	for _, key := range slices.Sorted(maps.Keys(params)) {
		out[strings.ToLower(key)] = params[key]
	}
	return out
}
