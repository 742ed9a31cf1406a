package postgres

import (
	"database/sql/driver"
	"reflect"
	"slices"

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
	Named:            readNamed,
	Nameable:         nameable,
	Pooled:           isPooled,
	Obeys:            obeys,
	Writable:         writable,
	ReadOnly:         isReadOnly,
}

// dialectOf returns the dialect of a pgx connector. The connector's mode and hooks decide
// how values are sent; an unreadable connector may have any hook.
func dialectOf(c driver.Connector) *dialect.Dialect {
	v := reflect.ValueOf(c)
	config, byTypes, resets := field(v, "ConnConfig"), isHook(field(v, "AfterConnect")), isHook(field(v, "ResetSession"))
	hooked := byTypes || resets
	if pool := field(v, "pool"); pool.IsValid() && !pool.IsNil() {
		config, byTypes = field(pool, "config", "ConnConfig"), isHook(field(pool, "config", "AfterConnect"))
		hooked = hooked || byTypes || isHook(field(pool, "config", "PrepareConn")) || isHook(field(pool, "config", "BeforeAcquire"))
	} else if v.IsValid() && v.Type() == byName {
		byTypes, hooked, resets = false, false, false
	}
	mode := pgx.QueryExecModeCacheStatement
	if m := field(config, "DefaultQueryExecMode"); m.IsValid() {
		mode = pgx.QueryExecMode(m.Int())
	}
	d := *postgresDialect
	d.Hooked, d.Resets = hooked, resets
	d.Storable = func(v any) (any, error) { return storable(v, byTypes) }
	d.Sendable = func(given []driver.NamedValue, call dialect.Call) (int, error) { return sendable(mode, given, call) }
	return &d
}

// isHook reports whether f is the application's function. A field that cannot be found may hold one.
func isHook(f reflect.Value) bool {
	return !f.IsValid() || !f.IsNil() && !slices.Contains(noHooks, f.Pointer())
}

// noHooks are the functions of pgx's connectors without hooks. byName is the type of connectors for
// registered configurations, which have no hooks.
var (
	noHooks = func() (all []uintptr) {
		for _, c := range []driver.Connector{stdlib.GetConnector(pgx.ConnConfig{}), stdlib.GetPoolConnector(nil)} {
			for _, name := range []string{"AfterConnect", "ResetSession"} {
				all = append(all, field(reflect.ValueOf(c), name).Pointer())
			}
		}
		return all
	}()
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
