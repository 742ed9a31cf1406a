package postgres

import (
	"database/sql/driver"
	"reflect"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// name is this kind of database's name in configurations.
const name = "postgres"

// postgresDialect has no TransactionLost: after an error PostgreSQL rejects everything until
// ROLLBACK, so that later statements cannot be committed alone.
var postgresDialect = &dialect.Dialect{
	Name:             name,
	System:           "postgresql",
	Flavor:           sqltext.Postgres,
	Classify:         classify,
	Mistake:          isMistake,
	Undecoded:        undecoded,
	PreparedByText:   true,
	Quoting:          quoting,
	Reset:            reset,
	ReceiptDuplicate: isReceiptDuplicate,
	ReceiptBusy:      isReceiptBusy,
	Idle:             idle,
	Interrupt:        interrupt,
	Atomic:           atomic,
	CommitWith:       commitWith,
	CheckNamedValue:  func(*driver.NamedValue) error { return nil }, // pgx takes what its codecs take, and says so when it encodes
	Storable:         func(v any) (any, error) { return storable(v, false) },
	Greet:            greet,
	Session:          sessionText,
	Adapt:            adapt,
	Pooled:           isPooled,
	Obeys:            obeys,
	Writable:         writable,
	ReadOnly:         isReadOnly,
}

// dialectOf returns the dialect of a pgx connector. The connector's mode and hooks decide
// how values are sent; an unreadable connector may have any hook.
func dialectOf(c driver.Connector) *dialect.Dialect {
	v := reflect.ValueOf(c)
	config, hook := field(v, "ConnConfig"), field(v, "AfterConnect")
	byTypes := !hook.IsValid() || hook.Pointer() != noHook
	if pool := field(v, "pool"); pool.IsValid() && !pool.IsNil() {
		config, hook = field(pool, "config", "ConnConfig"), field(pool, "config", "AfterConnect")
		byTypes = !hook.IsValid() || !hook.IsNil()
	} else if v.IsValid() && v.Type() == byName {
		byTypes = false
	}
	mode := pgx.QueryExecModeCacheStatement
	if m := field(config, "DefaultQueryExecMode"); m.IsValid() {
		mode = pgx.QueryExecMode(m.Int())
	}
	d := *postgresDialect
	d.Storable = func(v any) (any, error) { return storable(v, byTypes) }
	d.Sendable = func(given []driver.NamedValue, call dialect.Call) (int, error) { return sendable(mode, given, call) }
	return &d
}

// noHook is the AfterConnect of pgx's connectors without one. byName is the type of
// connectors for registered configurations, which have no hooks.
var (
	noHook = reflect.ValueOf(stdlib.GetConnector(pgx.ConnConfig{})).FieldByName("AfterConnect").Pointer()
	byName = func() reflect.Type {
		d, _ := stdlib.GetDefaultDriver().(driver.DriverContext)
		c, _ := d.OpenConnector("")
		return reflect.TypeOf(c)
	}()
)

// field follows names from a struct or a pointer to one; invalid if a name is missing.
func field(v reflect.Value, names ...string) reflect.Value {
	for _, name := range names {
		if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}
