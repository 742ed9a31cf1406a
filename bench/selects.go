package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// selects measures a wrapper's cost for a statement that passes through, on a driver that answers
// from memory.
type selects struct {
	opts *Options
	// nanoseconds and allocations of one SELECT by contender.
	nanoseconds, allocations map[string]series
	// moreNanoseconds and moreAllocations are a wrapper's extra cost: of each portion over the
	// bare driver's portion just before.
	moreNanoseconds, moreAllocations map[string]series
	order                            []string
}

const (
	portions = 101
	// queriesPerPortion is large enough to hide the cost of the clock.
	queriesPerPortion = 400
)

func (s *selects) run(progress func(string)) (err error) {
	start := time.Now()
	s.nanoseconds, s.allocations = map[string]series{}, map[string]series{}
	s.moreNanoseconds, s.moreAllocations = map[string]series{}, map[string]series{}
	pools := map[string]*sql.DB{"bare": sql.OpenDB(memoryDriver{})}
	s.order = []string{"bare", "bed"}
	storage := txlog.NewMemory()
	c, err := mysql.NewConnector(delivery.Target{Connector: memoryDriver{}, DataSource: "memory"}, bedsql.Config{Storage: storage, Logger: quiet()})
	if err != nil {
		return err
	}
	pools["bed"] = sql.OpenDB(c)
	defer func() {
		for _, p := range pools {
			err = errors.Join(err, p.Close())
		}
		err = errors.Join(err, storage.Close())
	}()
	for _, wrapper := range s.opts.Wrappers {
		if pools[wrapper.Name], err = wrapper.Open(memoryDriver{}); err != nil {
			return fmt.Errorf("%s: %w", wrapper.Name, err)
		}
		s.order = append(s.order, wrapper.Name)
	}
	for _, name := range s.order {
		if err := queryMany(pools[name], 10*queriesPerPortion); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for round := 0; s.opts.another(round, start, selectShare); round++ {
		progress(fmt.Sprintf("SELECT in memory: round %d", round+1))
		took := map[string]series{}
		allocated := map[string]series{}
		runtime.GC()
		// Short portions in turns: a disturbance is one outlier among many.
		for range portions {
			for _, name := range s.order {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				begin := time.Now()
				if err := queryMany(pools[name], queriesPerPortion); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				took[name] = append(took[name], float64(time.Since(begin))/queriesPerPortion)
				runtime.ReadMemStats(&after)
				allocated[name] = append(allocated[name], float64(after.Mallocs-before.Mallocs)/queriesPerPortion)
			}
		}
		for _, name := range s.order {
			s.nanoseconds[name] = append(s.nanoseconds[name], took[name].median())
			s.allocations[name] = append(s.allocations[name], allocated[name].median())
			s.moreNanoseconds[name] = append(s.moreNanoseconds[name], took[name].minus(took["bare"]).median())
			s.moreAllocations[name] = append(s.moreAllocations[name], allocated[name].minus(allocated["bare"]).median())
		}
	}
	return nil
}

// queryMany queries under a context without an end, because watching a context would cost
// database/sql more than the rest.
func queryMany(pool *sql.DB, times int) error {
	for range times {
		rows, err := pool.QueryContext(context.Background(), "SELECT n FROM t WHERE id = 1")
		if err != nil {
			return err
		}
		var n int64
		for rows.Next() {
			if err := rows.Scan(&n); err != nil {
				return errors.Join(err, rows.Close())
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		if n != 1 {
			return fmt.Errorf("read %d, not 1", n)
		}
	}
	return nil
}

// memoryDriver answers each query with one row from memory. It is its own
// connector.
type memoryDriver struct{}

var (
	_ driver.Connector      = memoryDriver{}
	_ driver.Driver         = memoryDriver{}
	_ driver.QueryerContext = memoryConn{}
	_ driver.ExecerContext  = memoryConn{}
)

var errNotInMemory = errors.New("the driver in memory only queries")

func (d memoryDriver) Connect(context.Context) (driver.Conn, error) { return memoryConn{}, nil }
func (d memoryDriver) Driver() driver.Driver                        { return d }
func (d memoryDriver) Open(string) (driver.Conn, error)             { return memoryConn{}, nil }

type memoryConn struct{}

func (memoryConn) Prepare(string) (driver.Stmt, error) { return nil, errNotInMemory }
func (memoryConn) Close() error                        { return nil }
func (memoryConn) Begin() (driver.Tx, error)           { return nil, errNotInMemory }
func (memoryConn) Ping(context.Context) error          { return nil }
func (memoryConn) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, errNotInMemory
}

func (memoryConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return new(memoryRows), nil
}

type memoryRows struct{ read bool }

var memoryColumns = []string{"n"}

func (r *memoryRows) Columns() []string { return memoryColumns }
func (r *memoryRows) Close() error      { return nil }
func (r *memoryRows) Next(row []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read = true
	row[0] = int64(1)
	return nil
}
