package bedsql_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func parseFake(string) (delivery.Target, error) {
	return delivery.Target{Connector: &fakeDriver{}, Dialect: fakeDialect, DataSource: "orders"}, nil
}

func TestConfigMistakesAreRefusedByName(t *testing.T) {
	t.Parallel()
	name, storage := fresh(t.Name()), txlog.NewMemory()
	for _, c := range []struct {
		cfg  bedsql.Config
		want string
	}{
		{bedsql.Config{}, "Storage"},
		{bedsql.Config{Storage: (*txlog.SQLStorage)(nil)}, "Storage"},
		{bedsql.Config{Storage: (*txlog.Memory)(nil)}, "Storage"},
		{bedsql.Config{Storage: storage, SyncMaxDeliveryTryTimes: -1}, "SyncMaxDeliveryTryTimes"},
		{bedsql.Config{Storage: storage, RetryInitial: -1}, "RetryInitial"},
		{bedsql.Config{Storage: storage, RetryMax: -time.Second}, "RetryMax"},
		{bedsql.Config{Storage: storage, RetryTimeout: -1}, "RetryTimeout"},
		{bedsql.Config{Storage: storage, Lease: -1}, "Lease"},
		{bedsql.Config{Storage: storage, Lease: 99 * time.Millisecond}, "Lease"},
		{bedsql.Config{Storage: storage, LogTimeout: -1}, "LogTimeout"},
		{bedsql.Config{Storage: storage, MaxUnitStatements: -1}, "MaxUnitStatements"},
		{bedsql.Config{Storage: storage, MaxUnitStatements: entry.MaxStatements + 1}, "MaxUnitStatements"},
		{bedsql.Config{Storage: storage, MaxUnitBytes: -1}, "MaxUnitBytes"},
		{bedsql.Config{Storage: storage, Guarantee: 200}, "Guarantee"},
		{bedsql.Config{Storage: storage, Pinned: 200}, "Pinned"},
		{bedsql.Config{Storage: storage, Guard: 200}, "Guard"},
	} {
		if err := bedsql.RegisterDriver(name, parseFake, c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("RegisterDriver with a wrong %s: %v, want an error that names it", c.want, err)
		}
		if _, err := bedsql.NewConnector(delivery.Target{Connector: &fakeDriver{}, DataSource: "orders"}, c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("NewConnector with a wrong %s: %v, want an error that names it", c.want, err)
		}
	}
	// The failed call registered nothing.
	if err := bedsql.RegisterDriver(name, parseFake, bedsql.Config{Storage: storage, Lease: 100 * time.Millisecond}); err != nil {
		t.Errorf("the name of refused registrations is taken, or the shortest lease is refused: %v", err)
	}
}

func TestConfigNamesAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	err := bedsql.RegisterDriver(t.Name(), parseFake, bedsql.Config{RetryMax: -1, MaxUnitBytes: -1, Pinned: 9})
	for _, want := range []string{"Storage", "RetryMax", "MaxUnitBytes", "Pinned"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestRegisterDriverRefusesANameThatIsTaken(t *testing.T) {
	t.Parallel()
	name, cfg := fresh(t.Name()), bedsql.Config{Storage: txlog.NewMemory()}
	if err := bedsql.RegisterDriver(name, parseFake, cfg); err != nil {
		t.Fatal(err)
	}
	if err := bedsql.RegisterDriver(name, parseFake, cfg); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a second registration: %v, want an error with the name", err)
	}
	if err := bedsql.RegisterDriver("sqlite", parseFake, cfg); err == nil {
		t.Error("the name of a bare driver could be taken over")
	}
	if err := bedsql.RegisterDriver("", parseFake, cfg); err == nil {
		t.Error("an empty name was accepted")
	}
	if err := bedsql.RegisterDriver(name+"2", nil, cfg); err == nil {
		t.Error("a driver that cannot read a DSN was accepted")
	}
}

func TestTargetWithoutADialectIsOpenedAndLogs(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	parse := func(string) (delivery.Target, error) {
		return delivery.Target{Connector: s.f, DataSource: "orders"}, nil
	}
	if err := bedsql.RegisterDriver(t.Name(), parse, s.cfg); err != nil {
		t.Fatal(err)
	}
	pool, err := sql.Open(t.Name(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	mustExec(t, pool, t.Context(), writeText)
	if n := s.storage.logged(); n != 1 {
		t.Errorf("%d entries were written, want 1", n)
	}
}

func TestRegisterDriverIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	name, cfg := fresh(t.Name()), bedsql.Config{Storage: txlog.NewMemory()}
	const racers = 8
	errs := make(chan error, racers)
	for range racers {
		go func() { errs <- bedsql.RegisterDriver(name, parseFake, cfg) }()
	}
	won := 0
	for range racers {
		if <-errs == nil {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d of %d registrations of one name succeeded, want 1", won, racers)
	}
}

func TestOpenRefusesATargetThatCannotBeDelivered(t *testing.T) {
	t.Parallel()
	good := delivery.Target{Connector: &fakeDriver{}, Dialect: fakeDialect, DataSource: "orders"}
	broken := errors.New("no such DSN")
	for name, parse := range map[string]func(string) (delivery.Target, error){
		"no name": func(string) (delivery.Target, error) {
			tgt := good
			tgt.DataSource = ""
			return tgt, nil
		},
		"long name": func(string) (delivery.Target, error) {
			tgt := good
			tgt.DataSource = strings.Repeat("x", 256)
			return tgt, nil
		},
		"autocommit off": func(string) (delivery.Target, error) {
			tgt := good
			tgt.AutocommitOff = true
			return tgt, nil
		},
		"unreadable": func(string) (delivery.Target, error) { return delivery.Target{}, broken },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := fresh(t.Name())
			if err := bedsql.RegisterDriver(name, parse, bedsql.Config{Storage: txlog.NewMemory()}); err != nil {
				t.Fatal(err)
			}
			if pool, err := sql.Open(name, "dsn"); err == nil {
				_ = pool.Close()
				t.Error("sql.Open accepted it")
			}
		})
	}
	if _, err := bedsql.NewConnector(delivery.Target{DataSource: "orders"}, bedsql.Config{Storage: txlog.NewMemory()}); err == nil {
		t.Error("NewConnector accepted no connector")
	}
	if _, err := bedsql.NewConnector(delivery.Target{Connector: &fakeDriver{}}, bedsql.Config{Storage: txlog.NewMemory()}); err == nil {
		t.Error("NewConnector accepted a data source without a name")
	}
	c, err := bedsql.NewConnector(delivery.Target{Connector: &fakeDriver{}, DataSource: strings.Repeat("x", 255)}, bedsql.Config{Storage: txlog.NewMemory()})
	if err != nil || c == nil {
		t.Errorf("the longest name, and no dialect: %v", err)
	}
}

func TestADialectWithoutReceiptsCannotDeliverExactlyOnce(t *testing.T) {
	t.Parallel()
	const want = "ExactlyOnce"
	s := newSet(t, &fakeDriver{})
	once := s.cfg
	once.Guarantee = bedsql.ExactlyOnce
	target := delivery.Target{Connector: s.f, DataSource: "orders", Dialect: &dialect.Dialect{Name: "fake"}}
	if _, err := bedsql.NewConnector(target, once); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "orders") {
		t.Errorf("NewConnector: %v", err)
	}
	if err := bedsql.RegisterDriver(t.Name(), func(string) (delivery.Target, error) { return target, nil }, once); err != nil {
		t.Fatal(err)
	}
	if _, err := sql.Open(t.Name(), ""); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("sql.Open: %v", err)
	}
	atLeastOnce, err := bedsql.NewConnector(target, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.pool = sql.OpenDB(atLeastOnce)
	defer func() { _ = s.pool.Close() }()
	ctx, _ := bedsql.WithIdempotencyKey(t.Context(), "key")
	for name, ctx := range map[string]context.Context{"a key": ctx, "WithGuarantee": bedsql.WithGuarantee(t.Context(), bedsql.ExactlyOnce)} {
		if _, err := s.pool.ExecContext(ctx, writeText); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a write under %s: %v", name, err)
		}
		if tx, err := s.pool.BeginTx(ctx, nil); err == nil {
			if _, err := tx.Exec(writeText); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a write in a transaction under %s: %v", name, err)
			}
			_ = tx.Rollback()
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("a transaction under %s: %v", name, err)
		}
	}
	if n := s.storage.logged(); n != 0 {
		t.Errorf("%d entries were written", n)
	}
}
