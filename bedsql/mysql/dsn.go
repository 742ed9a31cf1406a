package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

// Target reads a DSN of go-sql-driver's form,
//
//	[user[:password]@][net[(addr)]]/dbname[?param1=value1&…&bedDataSource=name]
//
// It returns the bare driver's connector with bed's knowledge of the data source.
// bedDataSource (escaped as a query parameter) names it in the log. The default is the
// address and the database, "127.0.0.1:3306/orders" or "/run/mysqld/mysqld.sock/orders";
// with a dial function of the application, the name is required. bedReceiptSchema is the
// target's ReceiptSchema. Errors never repeat the DSN, which may hold a password.
func Target(dsn string) (delivery.Target, error) {
	cfg, own, err := readDSN(dsn)
	if err != nil {
		return delivery.Target{}, err
	}
	cfg.Logger = nil // the driver's default
	return target(cfg, own)
}

// TargetOf is [Target] for a driver's Config. An empty dataSource means the name derived
// from its address and database.
func TargetOf(cfg *mysql.Config, dataSource string) (delivery.Target, error) {
	cfg = cfg.Clone()
	others, own, err := dialects.TakeOwn(name, cfg.Params)
	if err != nil {
		return delivery.Target{}, err
	}
	cfg.Params, own.DataSource = others, cmp.Or(dataSource, own.DataSource)
	return target(cfg, own)
}

// readDSN reads a DSN like the driver, but without its panic (for the parameter strict) and
// without the parts of the DSN in its errors.
func readDSN(dsn string) (cfg *mysql.Config, own dialects.Own, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("mysql: the DSN cannot be used: the driver has removed its parameter strict")
		}
	}()
	cfg, err = mysql.ParseDSN(dsn)
	if err != nil {
		return nil, own, dsnError(err, dsn)
	}
	// "user:password(addr)/db" reads as a network of the application's own, and would become
	// part of the data source's name.
	if strings.ContainsRune(cfg.Net, ':') {
		return nil, own, errors.New("mysql: the DSN cannot be used: its network has a colon, is the @ behind the password missing?")
	}
	cfg.Params, own, err = dialects.TakeOwn(name, cfg.Params)
	return cfg, own, err
}

func target(cfg *mysql.Config, own dialects.Own) (delivery.Target, error) {
	if chosen := cfg.Logger; chosen == nil || reflect.TypeOf(chosen).Comparable() && chosen == mysql.NewConfig().Logger {
		cfg.Logger = &mysql.NopLogger{} // its lines ("broken pipe") say no more than the errors
	}
	if own.DataSource == "" {
		own.DataSource = dataSource(cfg)
		if err := holdAddress(cfg); err != nil {
			return delivery.Target{}, err
		}
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return delivery.Target{}, dsnError(err, "")
	}
	t := delivery.Target{
		Connector:     connector,
		Dialect:       newDialect(cfg),
		DataSource:    own.DataSource,
		Settings:      settings(cfg, own.ReceiptSchema),
		Account:       cfg.User,
		ReceiptSchema: own.ReceiptSchema,
		AutocommitOff: autocommitOff(cfg),
		With:          dialects.Applying(func(list []dialects.Setting) (delivery.Target, error) { return with(cfg, own.DataSource, list) }),
	}
	return t, attempt.CheckReceiptSchema(&t)
}

// dataSource names a data source by its location; empty if a function of the application
// decides the address.
func dataSource(cfg *mysql.Config) string {
	if network := cfg.Net; cfg.DialFunc != nil || network != "" && network != "tcp" && network != "unix" {
		return ""
	}
	usual := map[string]string{"": "127.0.0.1:3306", "tcp": "127.0.0.1:3306", "unix": "/tmp/mysql.sock"}
	return cmp.Or(cfg.Addr, usual[cfg.Net]) + "/" + cfg.DBName
}

// holdAddress refuses connections that the application's BeforeConnect leads elsewhere than
// cfg says.
func holdAddress(cfg *mysql.Config) error {
	before := beforeConnect(cfg)
	if before == nil {
		return nil
	}
	return cfg.Apply(mysql.BeforeConnect(func(ctx context.Context, to *mysql.Config) error {
		named := dataSource(to)
		err := before(ctx, to)
		if err == nil && dataSource(to) != named {
			return dialects.ErrElsewhere
		}
		return err
	}))
}

// beforeConnect gives the function that the driver keeps in an unexported field; nil if
// there is none.
func beforeConnect(cfg *mysql.Config) (f func(context.Context, *mysql.Config) error) {
	if field := reflect.ValueOf(cfg).Elem().FieldByName("beforeConnect"); field.IsValid() {
		f, _ = reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Interface().(func(context.Context, *mysql.Config) error)
	}
	return f
}

const badEscape = "invalid URL escape"

// quotingErrors tells the parser's other errors apart by their beginnings.
var quotingErrors = []struct{ prefix, meaning string }{
	{"default addr for network", "the network has no default address: write net(addr)"},
	{"invalid dbname", "the database's name is not escaped as in a path"},
	{badEscape, "a parameter is not escaped as in a query"},
}

func dsnError(err error, dsn string) error {
	meaning := "it has not the form [user[:password]@][net[(addr)]]/dbname[?param=value]"
	if after, ok := strings.CutPrefix(err.Error(), "invalid DSN: "); ok { // it quotes nothing from the DSN
		meaning = after
	}
	for _, q := range quotingErrors {
		if strings.HasPrefix(err.Error(), q.prefix) {
			meaning = q.meaning
		}
	}
	if param := offending(dsn); param != "" {
		meaning = "the driver cannot use the value of the parameter " + param
	}
	return fmt.Errorf("mysql: the DSN cannot be read: %s", meaning)
}

// offending returns the name of the unreadable parameter. It is always one of the driver's
// own. Any other parameter, which could be part of a mistyped password, fails only by a bad
// escape.
func offending(dsn string) string {
	_, query, _ := strings.Cut(dsn[strings.LastIndexByte(dsn, '/')+1:], "?")
	for p := range strings.SplitSeq(query, "&") {
		if _, err := mysql.ParseDSN("/?" + p); err != nil && !strings.HasPrefix(err.Error(), badEscape) {
			key, _, _ := strings.Cut(p, "=")
			return key
		}
	}
	return ""
}
