package simulation

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	driver "github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
)

// This file has the writers that change rows in the log's database and record writes for other
// databases in the same local transaction.

// atLog is the source of the rows in the log's database.
const atLog = 2

const (
	withCommits behaviour = iota
	withGoesOn
	withUndoesSome
	withRollsBack
	withEndsEarly
	withoutEnd
)

// withKinds are the ways to do so: see sendWith. The first two do nothing odd.
var withKinds = func() (all []kind) {
	for b, what := range []string{
		withCommits: "", withGoesOn: " that goes on after errors", withUndoesSome: " that goes back to a savepoint",
		withRollsBack: " that is rolled back", withEndsEarly: " whose end comes early", withoutEnd: " that nobody ends",
	} {
		all = append(all, kind{"transaction with entries" + what, false, true, []int{atLog, 0, atLog, 1, 0}, sendWith(behaviour(b)), nil})
	}
	// Under a key, the rows in the log's database are written once, too.
	return append(all, kind{"transaction with entries under a key", true, true, []int{atLog, 0, 1, 0}, sendWith(withCommits), nil})
}()

func (k kind) isHome() bool { return k.local && slices.Contains(k.parts, atLog) }

// atHome has such writers, and leaves the rest to chance.
var atHome = &focus{kinds: append(slices.Clone(withKinds), kinds[0], kinds[2], kinds[7]), wide: true, home: true, begin: func(w *world) {}}

// goesOnAfter reports whether an application may go on in its transaction after an error: it knows
// that the transaction is open, and the error does not demand a rollback.
func goesOnAfter(err error) bool {
	var answered *driver.MySQLError
	return errors.As(err, &answered) && answered.Number == errLockTimeout.Number && !errors.Is(err, bedsql.ErrTransactionLost) && !strings.Contains(err.Error(), "; roll back, ")
}

var errUndone = errors.New("the application rolled back")

// waited reports whether another transaction held a lock for too long. That takes no fault.
func waited(err error) bool { return strings.Contains(err.Error(), errLockTimeout.Message) }

// sendWith records entries in a local transaction.
func sendWith(b behaviour) func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
	return func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
		tx, err := pools[atLog].BeginTx(ctx, nil)
		if err != nil {
			s.undone = true
			return err
		}
		inside, soft, err := bedsql.Begin(ctx, r.options(bedsql.WithTx(tx))...)
		if err != nil {
			s.undone = tx.Rollback() == nil
			return err
		}
		r.group = soft.ID()
		if r.order != "" {
			inside = bedsql.WithOrderKey(inside, r.order)
		}
		step := func(p *part) error {
			if p.source == atLog {
				err = write(ctx, tx, p, s)
			} else {
				err = write(inside, pools[p.source], p, s)
			}
			if err == nil && p.undo != nil {
				err = write(soft.Compensation(inside), pools[p.source], p.undo, s)
			}
			return err
		}
		// end ends it. Of a transaction without entries End knows nothing.
		end := func(before error) error {
			err := soft.End(ctx)
			if !slices.ContainsFunc(r.parts, func(p *part) bool { return p.source != atLog && s.said[p] }) {
				err = cmp.Or(err, before)
			}
			return err
		}
		for i, p := range r.parts {
			if b == withUndoesSome && i == 3 {
				_, err = tx.ExecContext(ctx, "SAVEPOINT here")
			}
			if err == nil {
				if err = step(p); b == withGoesOn && goesOnAfter(err) {
					err = nil
				}
			}
			if b == withUndoesSome && i == 4 && err == nil {
				for _, p := range r.parts[3:] {
					delete(s.said, p)
					delete(s.said, p.undo)
				}
				_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT here")
			}
			if err != nil || b == withRollsBack {
				_ = tx.Rollback()
				s.undone = true
				before := err
				err = end(cmp.Or(err, errUndone))
				s.meant = (before == nil || waited(before)) && (errors.Is(err, errUndone) || errors.Is(err, bedsql.ErrRolledBack))
				return err
			}
		}
		if b == withEndsEarly {
			err = end(errUndone)
			var answered *driver.MySQLError // the transaction may be gone, and a COMMIT commits nothing
			s.committed = tx.Commit() == nil && (!errors.As(err, &answered) || goesOnAfter(err))
			s.meant = s.committed && (errors.Is(err, errUndone) || errors.Is(err, bedsql.ErrNotCommitted))
			return err
		}
		err = tx.Commit()
		s.committed = err == nil
		if s.meant = b == withoutEnd && err == nil; b == withoutEnd {
			return bedsql.ErrUnknownOutcome
		}
		before := err // COMMIT says why; End knows only that it did not commit
		err = end(before)
		s.meant = before != nil && waited(before) && errors.Is(err, bedsql.ErrRolledBack)
		return err
	}
}
