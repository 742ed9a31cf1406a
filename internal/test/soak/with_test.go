package soak

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/test/testdb"
)

// home is the log's database with rows of an application: effects alone.
const home = "home"

// nobody is the id of a missing account.
const nobody = 999

func unmet(rng dice) []Step {
	return []Step{{Target: anyTarget(rng), Account: nobody, N: amount(rng), Refuse: true}}
}

func unmetStaged(rng dice) []Step {
	return append([]Step{step(rng, bankM)}, Step{Target: bankP, Account: nobody, N: amount(rng), Refuse: true})
}

func atHome(rng dice) []Step {
	return append([]Step{{Target: home, N: amount(rng)}}, three(rng)[rng.IntN(3):]...)
}

func unmetWith(rng dice) []Step {
	return append([]Step{{Target: home, N: amount(rng)}}, unmetStaged(rng)...)
}

// requiring has each write change one row.
func requiring(send func(context.Context, *app, *sending) error) func(context.Context, *app, *sending) error {
	return func(ctx context.Context, a *app, s *sending) error { return send(bedsql.RequireRows(ctx, 1), a, s) }
}

// openHome opens the log's database as that of an application.
func (a *app) openHome(cfg bedsql.Config) error {
	register := map[string]func(string, bedsql.Config) error{testdb.DriverMySQL: mysql.Register, testdb.DriverPostgres: postgres.Register, testdb.DriverSQLite: sqlite.Register}[a.LogDriver]
	if err := register(home, cfg); err != nil {
		return err
	}
	var err error
	if a.home, err = sql.Open(home, a.Log); err == nil {
		a.home.SetMaxOpenConns(workers + 1)
	}
	return err
}

// with writes the first step itself, and records the others in its transaction.
func with(ctx context.Context, a *app, s *sending) error {
	conn, err := a.home.Conn(ctx)
	if err != nil {
		return failure{err}
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return failure{err}
	}
	sctx, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
	if err != nil {
		return failure{errors.Join(err, tx.Rollback())}
	}
	results := make([]sql.Result, len(s.Steps))
	query := insertText
	if a.LogDriver == testdb.DriverPostgres {
		query = text(home, insertText)
	}
	results[0], err = tx.ExecContext(ctx, query, s.name(0), s.Steps[0].Account, s.Steps[0].N)
	for i := 1; i < len(s.Steps) && err == nil; i++ {
		if results[i], err = s.update(sctx, a.pools[s.Steps[i].Target], i); err == nil && s.Turns {
			err = s.undo(soft.Compensation(sctx), a, i)
		}
	}
	if err == nil {
		err = tx.Commit()
		a.turn(ctx, s, soft.ID())
	} else if rerr := tx.Rollback(); rerr == nil {
		return failure{err}
	} else {
		err = errors.Join(err, rerr)
		defer discard(conn)
		return failure{err} // COMMIT was not sent
	}
	if err != nil {
		defer discard(conn) // its transaction may still be open
	}
	end := soft.End(ctx)
	var each *bedsql.EndError
	named := errors.As(end, &each) && len(each.Pending())+len(each.Refused())+len(each.Delivered) > 0
	s.outcomes = make([]Outcome, len(s.Steps))
	for i := range s.outcomes {
		switch {
		case err == nil && errors.Is(end, bedsql.ErrUnknownOutcome) && i > 0:
			s.outcomes[i] = Pending // it was committed, and the job goes on
		case err == nil, end == nil, named:
			s.outcomes[i] = Delivered
		case errors.Is(end, bedsql.ErrRolledBack):
			s.outcomes[i] = Failed
		default:
			s.outcomes[i] = Unknown
		}
	}
	if named {
		s.ended(each)
	}
	if s.Turns && (err == nil || named) { // one answer for the group; its own row stays
		for i := 1; i < len(s.outcomes); i++ {
			if s.outcomes[i] = outcome(end); s.outcomes[i] == Unknown {
				s.outcomes[i] = Pending
			}
		}
	}
	if end == nil {
		for i := 1; i < len(results); i++ {
			if err := s.rows(i, results[i]); err != nil {
				return err
			}
		}
	}
	return errors.Join(err, end)
}

// discard closes a connection in an unknown state.
func discard(conn *sql.Conn) { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }

// effects is the table at home, by the log's driver.
var effects = map[string]string{
	testdb.DriverMySQL:    "CREATE TABLE effect (id BIGINT PRIMARY KEY AUTO_INCREMENT, request VARCHAR(80) NOT NULL, account BIGINT NOT NULL, n BIGINT NOT NULL)",
	testdb.DriverPostgres: "CREATE TABLE effect (id BIGSERIAL PRIMARY KEY, request VARCHAR(80) NOT NULL, account BIGINT NOT NULL, n BIGINT NOT NULL)",
	testdb.DriverSQLite:   "CREATE TABLE effect (id INTEGER PRIMARY KEY AUTOINCREMENT, request TEXT NOT NULL, account BIGINT NOT NULL, n BIGINT NOT NULL)",
}
