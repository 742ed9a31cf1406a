package differential

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/bedsql"
	bedmysql "github.com/bedsql/bed/bedsql/mysql"
	bedpostgres "github.com/bedsql/bed/bedsql/postgres"
	bedsqlite "github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

const (
	stepsOfAProgram = 150
	compareEvery    = 25 // steps between two looks at the tables
	shrinkFor       = time.Minute
)

func TestMain(m *testing.M) {
	_ = gomysql.SetLogger(new(gomysql.NopLogger))
	goleak.VerifyTestMain(leaks.Patient(m))
}

var log = txlog.NewMemory()

// register registers a driver for each kind of database and each guarantee.
var register = sync.OnceValue(func() error {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	for driver, with := range (testdb.By[func(string, bedsql.Config) error]{
		MySQL: bedmysql.Register, Postgres: bedpostgres.Register, SQLite: bedsqlite.Register,
	}).All() {
		for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			cfg := bedsql.Config{Storage: log, Guarantee: guarantee, Logger: quiet}
			if err := with(wrapped(driver, guarantee), cfg); err != nil {
				return err
			}
		}
	}
	return nil
})

func wrapped(driver string, guarantee bedsql.Guarantee) string {
	return fmt.Sprintf("differential-%s-%d", driver, guarantee)
}

func TestWrapperIsIndistinguishableFromTheBareDriver(t *testing.T) {
	t.Parallel()
	if err := register(); err != nil {
		t.Fatal(err)
	}
	for _, driver := range []string{mysql, postgres, sqlite} {
		if testing.Short() && driver != sqlite {
			continue
		}
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			for i, parameters := range lines(t, driver+".variants") {
				if only := os.Getenv("BED_FUZZ_VARIANT"); only != "" && only != strconv.Itoa(i+1) {
					continue
				}
				for guarantee, name := range map[bedsql.Guarantee]string{bedsql.AtLeastOnce: "at-least-once", bedsql.ExactlyOnce: "exactly-once"} {
					t.Run(fmt.Sprintf("%d/%s", i+1, name), func(t *testing.T) {
						t.Parallel()
						fuzz(t, pair{driver: driver, parameters: parameters, guarantee: guarantee, schema: schema(t, driver)}, uint64(2*i)+uint64(guarantee))
					})
				}
			}
		})
	}
}

// fuzz runs the program of a seed, or new ones for the time in BED_FUZZ_TIME. Without it every run
// uses the same seed, so that differences come from code changes.
func fuzz(t *testing.T, p pair, seed uint64) {
	until := time.Now()
	if text := os.Getenv("BED_FUZZ_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("BED_FUZZ_TIME: %v", err)
		}
		seed, until = rand.Uint64(), until.Add(d)
	}
	if text := os.Getenv("BED_FUZZ_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BED_FUZZ_SEED: %v", err)
		}
	}
	for {
		program := newGenerator(t, p.driver, p.guarantee, seed).program(stepsOfAProgram)
		difference, at, err := p.run(program, compareEvery)
		if err != nil {
			t.Fatalf("BED_FUZZ_SEED=%d, %s: %v", seed, p.parameters, err)
		}
		if difference != "" {
			least, difference := p.shrink(program[:at+1], difference)
			t.Fatalf("BED_FUZZ_SEED=%d, DSN with %s: wrapped is not as bare after these steps:\n  %s\n%s", seed, p.parameters, join(least), difference)
		}
		if !time.Now().Before(until) {
			return
		}
		seed = rand.Uint64()
	}
}

func join(steps []step) string {
	text := make([]string, len(steps))
	for i, s := range steps {
		text[i] = s.String()
	}
	return strings.Join(text, "\n  ")
}

// A pair is the common part of two sides.
type pair struct {
	driver, parameters string
	guarantee          bedsql.Guarantee
	schema             []string
}

// run runs a program on two new databases and returns the first difference with its step. err is a
// problem of the test itself.
func (p pair) run(program []step, every int) (difference string, at int, err error) {
	var sides [2]*side
	var inspectors [2]*sql.DB
	var source string
	for i, driver := range []string{sqlDriver(p.driver), wrapped(p.driver, p.guarantee)} {
		db, drop, err := p.database()
		if err != nil {
			return "", 0, err
		}
		defer func() { _ = drop() }()
		if inspectors[i], err = sql.Open(db.SQLDriver(), db.DSN); err != nil {
			return "", 0, err
		}
		inspectors[i].SetMaxOpenConns(1)
		defer func() { _ = inspectors[i].Close() }()
		for _, statement := range p.schema {
			if _, err := inspectors[i].Exec(statement); err != nil {
				return "", 0, fmt.Errorf("%s: %w", statement, err)
			}
		}
		dsn := p.dsn(db)
		if i == 1 {
			source = db.Name
			dsn = withDataSource(p.driver, dsn, source)
		}
		if sides[i], err = newSide(driver, dsn, db.Name); err != nil {
			return "", 0, fmt.Errorf("%s: %w", p.parameters, err)
		}
		sides[i].goesOn = p.driver == postgres
		if p.guarantee == bedsql.ExactlyOnce {
			sides[i].onlyWritesCount = p.driver == sqlite
			sides[i].positionsDiffer = strings.Contains(p.parameters, "simple_protocol")
		}
	}
	difference, at, err = compare(program, sides, inspectors, p.tables(), every)
	for _, s := range sides {
		if e := s.close(); e != nil && err == nil && difference == "" {
			difference, at = fmt.Sprintf("closing %s: %v", s.name, e), len(program)-1
		}
	}
	if err == nil && difference == "" {
		difference, err = look(inspectors, p.tables())
		at = len(program) - 1
	}
	if err == nil && difference == "" {
		units, e := log.List(context.Background(), txlog.Filter{DataSource: source})
		if err = e; len(units) > 0 {
			at = len(program) - 1
			difference = fmt.Sprintf("%d units are left in the log, the first: %+v", len(units), units[0])
		}
	}
	return difference, at, err
}

// describedByOne reports whether both sides refuse a statement in a transaction aborted by
// PostgreSQL, for different reasons: pgx an argument of a text described on this connection before,
// the server any other text. Under ExactlyOnce the described text includes the receipt
// (docs/exactly-once.md).
func describedByOne(bare, wrapped string) bool {
	return strings.HasPrefix(bare, `"failed to encode args[`) && strings.Contains(wrapped, "Code:25P02")
}

func compare(program []step, sides [2]*side, inspectors [2]*sql.DB, tables []string, every int) (string, int, error) {
	for i, one := range program {
		bare, wrapped := sides[0].run(one), sides[1].run(one)
		if bare != wrapped && !describedByOne(bare, wrapped) {
			return fmt.Sprintf("the last one gives\n  bare:    %s\n  wrapped: %s", bare, wrapped), i, nil
		}
		if sides[0].tx != nil || sides[0].byText || (i+1)%every > 0 {
			continue
		}
		if difference, err := look(inspectors, tables); difference != "" || err != nil {
			return difference, i, err
		}
	}
	return "", 0, nil
}

// look compares the tables.
func look(inspectors [2]*sql.DB, tables []string) (difference string, err error) {
	var now [2]contents
	for i, inspector := range inspectors {
		if now[i], err = dump(context.Background(), inspector, tables); err != nil {
			return "", err
		}
	}
	return now[0].differ(now[1]), nil
}

// shrink leaves steps out as long as a difference remains.
func (p pair) shrink(program []step, difference string) ([]step, string) {
	until := time.Now().Add(shrinkFor)
	for chunk := len(program) / 2; chunk > 0; chunk /= 2 {
		for from := 0; from < len(program) && time.Now().Before(until); {
			shorter := append(append([]step(nil), program[:from]...), program[min(from+chunk, len(program)):]...)
			if d, at, err := p.run(shorter, 1); err == nil && d != "" && len(shorter) > 0 {
				program, difference = shorter[:min(at+1, len(shorter))], d
			} else {
				from += chunk
			}
		}
	}
	return program, difference
}

func sqlDriver(driver string) string { return testdb.DB{Driver: driver}.SQLDriver() }
