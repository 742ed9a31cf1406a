package simulation

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// simulated is the name under which txlog finds the simulated servers. Its DSN is
// the name of the process in wires.
const simulated = "simulated"

var wires sync.Map

func init() {
	logdb.Register(simulated, logdb.Backend{
		Flavor: sqltext.MySQL,
		Connector: func(dsn string, _ logdb.Before) (driver.Connector, error) {
			w, ok := wires.Load(dsn)
			if !ok {
				return nil, errors.New("no such process")
			}
			return w.(driver.Connector), nil
		},
		Answered: func(err error) bool {
			var server *mysql.MySQLError
			return errors.As(err, &server)
		},
	})
}

// memory is a process's view of the log in memory, for histories about other things.
type memory struct {
	*txlog.Memory
	n *network
	p *process
}

// gone says why the process cannot reach its log.
func (l *memory) gone() (err error) {
	l.n.do(func() {
		if l.p.dead {
			err = txlog.ErrClosed
		}
	})
	return err
}

func (l *memory) Add(ctx context.Context, d time.Duration, units ...*entry.Unit) error {
	if err := l.gone(); err != nil {
		return err
	}
	return l.Memory.Add(ctx, d, units...)
}

func (l *memory) Renew(ctx context.Context, d time.Duration, units ...*entry.Unit) (lost []*entry.Unit, err error) {
	l.n.do(func() {
		if l.n.still {
			err = errors.New("the process stands still")
		}
	})
	if err = errors.Join(err, l.gone()); err != nil {
		return nil, err
	}
	return l.Memory.Renew(ctx, d, units...)
}

func (l *memory) Remove(ctx context.Context, units ...*entry.Unit) error {
	if err := l.gone(); err != nil {
		return err
	}
	return l.Memory.Remove(ctx, units...)
}

func (l *memory) Release(ctx context.Context, u *entry.Unit, v entry.Verdict) error {
	if err := l.gone(); err != nil {
		return err
	}
	return l.Memory.Release(ctx, u, v)
}

func (l *memory) Claim(ctx context.Context, r entry.ClaimRequest) ([]*entry.Unit, error) {
	if err := l.gone(); err != nil {
		return nil, err
	}
	return l.Memory.Claim(ctx, r)
}

func (l *memory) Missing(ctx context.Context, ids []string) ([]string, error) {
	if err := l.gone(); err != nil {
		return nil, err
	}
	return l.Memory.Missing(ctx, ids)
}

// logged is a unit as the log has it.
type logged struct {
	id                       string
	texts                    []string
	parked                   bool
	lastError, notReplayable string
	number                   int64 // under its order key
}

// aNumber is the last of an entry's places under its order keys.
var aNumber = regexp.MustCompile(`^\{"order":\[.*"number":(\d+)\}\],"parameters":`)

// entries reads the committed log, unseen by the actors.
func (w *world) entries() (all []*logged) {
	if w.database == nil {
		units, err := w.memory.List(context.Background(), txlog.Filter{})
		must(err)
		for _, u := range units {
			e := &logged{id: u.ID, parked: u.Parked, lastError: u.LastError, notReplayable: u.NotReplayable}
			for _, o := range u.Order {
				e.number = o.Number
			}
			for _, s := range u.Statements {
				e.texts = append(e.texts, s.SQL)
			}
			all = append(all, e)
		}
		return all
	}
	t := w.database.databases[home]["transaction_log"]
	var rows []row
	for _, c := range t.cells {
		if c.committed != nil {
			rows = append(rows, c.committed)
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a["id"].(string), b["id"].(string)) })
	for _, r := range rows {
		if r["statement_no"] == int64(0) {
			lastError, _ := r["last_error"].(string)
			all = append(all, &logged{id: r["id"].(string), parked: r["parked"] == int64(1), lastError: lastError, notReplayable: r["not_replayable"].(string)})
		}
		e := all[len(all)-1]
		if m := aNumber.FindStringSubmatch(r["parameters"].(string)); m != nil {
			e.number, _ = strconv.ParseInt(m[1], 10, 64)
		}
		e.texts = append(e.texts, r["sql"].(string))
	}
	return all
}
