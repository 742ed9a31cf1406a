package mysql

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/go-sql-driver/mysql"
)

// dataSourceParam names the data source in a DSN. The driver never sees it.
const dataSourceParam = "bedDataSource"

// Target reads a DSN of go-sql-driver's form,
//
//	[user[:password]@][net[(addr)]]/dbname[?param1=value1&…&bedDataSource=name]
//
// and returns the bare driver's connector with all that bed knows of the data
// source. bedDataSource (escaped as a query parameter) names it in the log;
// without it the name is the address and the database, "127.0.0.1:3306/orders"
// or "/run/mysqld/mysqld.sock/orders". bedReceiptSchema is the target's
// ReceiptSchema. Errors say what is wrong without
// repeating the DSN, which may hold a password.
func Target(dsn string) (delivery.Target, error) {
	name, bare, err := splitDataSource(dsn)
	if err != nil {
		return delivery.Target{}, err
	}
	cfg, err := parseDSN(bare)
	if err != nil {
		return delivery.Target{}, err
	}
	cfg.Logger = nil // the driver's default
	return target(cfg, bare, name)
}

// TargetOf is [Target] for a driver's Config. An empty dataSource stands for
// the name derived from its address and database.
func TargetOf(cfg *mysql.Config, dataSource string) (delivery.Target, error) {
	cfg = cfg.Clone()
	return target(cfg, cfg.FormatDSN(), dataSource)
}

func target(cfg *mysql.Config, bare, name string) (delivery.Target, error) {
	log := takeLog(cfg)
	named := settings(cfg)
	schema, err := takeReceiptSchema(cfg)
	if err != nil {
		return delivery.Target{}, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return delivery.Target{}, dsnError(err, "")
	}
	if name == "" {
		name = dataSource(cfg)
	}
	t := delivery.Target{
		Connector:     connector,
		DriverLog:     log.tell,
		Dialect:       newDialect(),
		DataSource:    name,
		Settings:      named,
		ReceiptSchema: schema,
		OlderSettings: olderSettings(cfg, rawParams(bare)),
		With:          func(settings string) (delivery.Target, error) { return with(cfg, name, settings) },
		AutocommitOff: autocommitOff(cfg),
	}
	return t, attempt.CheckReceiptSchema(&t)
}

// takeReceiptSchema takes bedReceiptSchema out of what the driver would set in
// the session.
func takeReceiptSchema(cfg *mysql.Config) (schema string, err error) {
	params := maps.Clone(cfg.Params)
	for key, value := range params {
		if !strings.EqualFold(variableName(key), attempt.SchemaParam) {
			continue
		}
		if value = strings.TrimSpace(value); value == "" {
			return "", errors.New("mysql: " + attempt.SchemaParam + " in the DSN is empty: name the database for receipts or leave the parameter out")
		}
		if schema != "" && schema != value {
			return "", errors.New("mysql: the DSN has two different values of " + attempt.SchemaParam + ": leave one")
		}
		schema = value
		delete(params, key)
	}
	cfg.Params = params
	return schema, nil
}

// dataSource names a data source by where it is.
func dataSource(cfg *mysql.Config) string {
	addr := cfg.Addr
	if addr == "" {
		addr = map[string]string{"": "127.0.0.1:3306", "tcp": "127.0.0.1:3306", "unix": "/tmp/mysql.sock"}[cfg.Net]
	}
	switch cfg.Net {
	case "", "tcp", "unix":
	default: // a dial function registered by the application
		addr = cfg.Net + "(" + addr + ")"
	}
	return addr + "/" + cfg.DBName
}

// splitDataSource takes bedDataSource out of a DSN and leaves everything else
// byte for byte. The driver's parser would give it too (Config.Params), but takes
// the last slash of an unescaped name for the one before the database, and
// silently keeps one of two different names.
func splitDataSource(dsn string) (name, bare string, err error) {
	head, params, ok := cutParams(dsn)
	if !ok || !hasDataSource(params) {
		if head, value, tail, ok := cutUnescaped(dsn); ok {
			name, err := dataSourceName(value)
			return name, head + tail, err
		}
		return "", dsn, nil
	}
	kept := params[:0:0]
	for _, p := range params {
		key, value, found := strings.Cut(p, "=")
		if !found || key != dataSourceParam {
			kept = append(kept, p)
			continue
		}
		n, err := dataSourceName(value)
		if err != nil {
			return "", "", err
		}
		if name != "" && n != name {
			return "", "", errors.New("mysql: the DSN has two different values of " + dataSourceParam + ": leave one")
		}
		name = n
	}
	if len(kept) == 0 {
		return name, head, nil
	}
	return name, head + "?" + strings.Join(kept, "&"), nil
}

func dataSourceName(value string) (string, error) {
	name, err := url.QueryUnescape(value)
	if err != nil {
		return "", errors.New("mysql: " + dataSourceParam + " in the DSN is not escaped as a query parameter: use url.QueryEscape")
	}
	if name == "" {
		return "", errors.New("mysql: " + dataSourceParam + " in the DSN is empty: name the data source or leave the parameter out")
	}
	return name, nil
}

// cutParams finds the parameters where the driver does: after the first
// question mark after the last slash, because passwords and addresses may hold
// both.
func cutParams(dsn string) (head string, params []string, ok bool) {
	slash := strings.LastIndexByte(dsn, '/')
	if slash < 0 {
		return dsn, nil, false
	}
	mark := strings.IndexByte(dsn[slash:], '?')
	if mark < 0 {
		return dsn, nil, false
	}
	return dsn[:slash+mark], strings.Split(dsn[slash+mark+1:], "&"), true
}

func hasDataSource(params []string) bool {
	for _, p := range params {
		if strings.HasPrefix(p, dataSourceParam+"=") {
			return true
		}
	}
	return false
}

// cutUnescaped finds a bedDataSource whose slashes were not escaped, as in
// ?bedDataSource=127.0.0.1:3306/orders. The driver takes the last slash for the
// one before the database's name, so such a DSN must be read with care: no "@"
// may follow, or the text might be part of the password.
func cutUnescaped(dsn string) (head, value, tail string, ok bool) {
	at := strings.LastIndex(dsn, dataSourceParam+"=")
	if at < 1 || (dsn[at-1] != '?' && dsn[at-1] != '&') || strings.ContainsRune(dsn[at:], '@') {
		return "", "", "", false
	}
	before := dsn[:at-1]
	slash := strings.LastIndexByte(before, '/')
	if slash < 0 || (dsn[at-1] == '&') != strings.ContainsRune(before[slash:], '?') {
		return "", "", "", false
	}
	value, rest, more := strings.Cut(dsn[at+len(dataSourceParam)+1:], "&")
	if more {
		tail = dsn[at-1:at] + rest
	}
	return before, value, tail, true
}

// rawParams returns the DSN's parameters as the driver would read them: of
// several with one name the last wins.
func rawParams(dsn string) map[string]string {
	_, list, _ := cutParams(dsn)
	params := make(map[string]string, len(list))
	for _, p := range list {
		key, value, found := strings.Cut(p, "=")
		if !found {
			continue
		}
		if v, err := url.QueryUnescape(value); err == nil {
			value = v
		}
		params[key] = value
	}
	return params
}

// parseDSN is the driver's ParseDSN without its panic (for the parameter
// strict) and without the pieces of the DSN that its errors quote.
func parseDSN(dsn string) (cfg *mysql.Config, err error) {
	defer func() {
		if recover() != nil {
			cfg, err = nil, errors.New("mysql: the DSN cannot be used: the driver has removed its parameter strict")
		}
	}()
	cfg, err = mysql.ParseDSN(dsn)
	if err != nil {
		return nil, dsnError(err, dsn)
	}
	// "user:password(addr)/db" reads as a network of the application's own, and
	// would become part of the data source's name.
	if strings.ContainsRune(cfg.Net, ':') {
		return nil, errors.New("mysql: the DSN cannot be used: its network has a colon, is the @ behind the password missing?")
	}
	return cfg, nil
}

// constantErrors are the beginnings of the driver's parser errors that quote
// nothing.
const constantErrors = "invalid DSN: "

// quotingErrors tell the parser's other errors apart by their beginnings.
var quotingErrors = []struct{ prefix, meaning string }{
	{"default addr for network", "the network has no default address: write net(addr)"},
	{"invalid dbname", "the database's name is not escaped as in a path"},
	{"invalid bool value", "a parameter is neither true nor false"},
	{"invalid value / unknown config name", "no TLS configuration of this name is registered"},
	{"invalid value / unknown server pub key", "no server public key of this name is registered"},
	{"invalid timeTruncate", "timeTruncate is no duration"},
	{"unknown time zone", "loc is no known time zone"},
	{"time: ", "a parameter is no duration"},
	{"strconv.", "a parameter is no number"},
	{"invalid URL escape", "a parameter is not escaped as in a query"},
}

func dsnError(err error, dsn string) error {
	meaning := "it has not the form [user[:password]@][net[(addr)]]/dbname[?param=value]"
	if after, ok := strings.CutPrefix(err.Error(), constantErrors); ok {
		meaning = after
	}
	for _, q := range quotingErrors {
		if strings.HasPrefix(err.Error(), q.prefix) {
			meaning = q.meaning
		}
	}
	if param := offending(dsn); param != "" {
		return fmt.Errorf("mysql: the DSN cannot be read: parameter %s: %s", param, meaning)
	}
	return fmt.Errorf("mysql: the DSN cannot be read: %s", meaning)
}

// knownParams are the driver's own. Only these are named in an error: anything
// else could be part of a mistyped password.
var knownParams = []string{
	"allowAllFiles", "allowCleartextPasswords", "allowFallbackToPlaintext", "allowNativePasswords", "allowOldPasswords",
	"checkConnLiveness", "clientFoundRows", "columnsWithAlias", "compress", "connectionAttributes", "interpolateParams",
	"loc", "maxAllowedPacket", "multiStatements", "parseTime", "readTimeout", "rejectReadOnly", "serverPubKey",
	"timeTruncate", "timeout", "tls", "writeTimeout",
}

// offending returns the name of the parameter that the driver cannot read.
func offending(dsn string) string {
	_, params, _ := cutParams(dsn)
	for _, p := range params {
		key, _, _ := strings.Cut(p, "=")
		for _, known := range knownParams {
			if key != known {
				continue
			}
			if _, err := mysql.ParseDSN("/?" + p); err != nil {
				return key
			}
		}
	}
	return ""
}
