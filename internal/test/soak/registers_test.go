package soak

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// A register is in use for a while, and later only by latecomers. Pending writes are concurrent
// with all later ones; the more of them there are, the more orders are possible.
const (
	registerAge   = 20 * time.Second
	registersEach = 3 // at a time, of each target, times the pace
	// slack is how long writes may go on when the faults are over.
	slack = 10 * time.Minute
)

// pace is the frequency of a worker's writes, relative to a pause of 100 ms with 20 ms a write.
// Keys and registers grow with it, so that each gets as many writes: the number of writes does not
// limit the judge.
func pace(pause time.Duration) int {
	const usual, write = 100 * time.Millisecond, 20 * time.Millisecond
	return max(1, int((usual+write)/(pause+write)))
}

func registerCount(o options) int {
	return int((o.duration+slack)/registerAge+1) * registersEach * pace(o.pause)
}

// aRegister is one of the current registers. Its numbers are so large that different sums are never
// equal.
func aRegister(d dice, op, target string) Step {
	each := int64(registersEach * d.pace)
	s := Step{Op: op, Target: target, Account: FirstRegister + int64(d.at/registerAge)*each + d.Int64N(each)}
	if op != OpRead {
		s.N = 1 + d.Int64N(1<<40)
	}
	return s
}

func register1(op string) func(dice) []Step {
	return func(d dice) []Step { return []Step{aRegister(d, op, anyTarget(d))} }
}

// registerP is for PostgreSQL alone. MariaDB has no UPDATE with RETURNING. It also lets readers see
// commits before they are on disk, and a kill loses these.
func registerP(op string) func(dice) []Step {
	return func(d dice) []Step { return []Step{aRegister(d, op, bankP)} }
}

func register2(op string) func(dice) []Step {
	return func(d dice) []Step {
		target := anyTarget(d)
		return []Step{aRegister(d, op, target), aRegister(d, op, target)}
	}
}

func registers(m, p string) func(dice) []Step {
	return func(d dice) []Step { return []Step{aRegister(d, m, bankM), aRegister(d, p, bankP)} }
}

var changeText = map[string]string{
	OpSet:     "UPDATE register SET value = ?, n = ?, request = ? WHERE id = ?",
	OpInOrder: "UPDATE register SET value = ?, n = ?, request = ? WHERE id = ?",
	OpAdd:     "UPDATE register SET value = value + ?, n = ?, request = ? WHERE id = ?",
	OpAddRead: "UPDATE register SET value = value + ?, n = ?, request = ? WHERE id = ?",
}

const readText = "SELECT value FROM register WHERE id = ?"

func changeReturning(ctx context.Context, pool *sql.DB, s *sending, i int) error {
	step := s.Steps[i]
	return s.returned(ctx, pool, i, changeText[step.Op]+" RETURNING value", step.N, step.N, s.name(i), step.Account)
}

func readRegister(ctx context.Context, pool *sql.DB, s *sending, i int) error {
	if err := pool.QueryRowContext(ctx, text(s.Steps[i].Target, readText), s.Steps[i].Account).Scan(&s.values[i]); err != nil {
		return failure{err}
	}
	return nil
}

// changeTx changes registers and reads them, in one local transaction.
func changeTx(ctx context.Context, a *app, s *sending) error {
	target := s.Steps[0].Target
	tx, err := a.pools[target].BeginTx(ctx, nil)
	if err != nil {
		return failure{err}
	}
	for i, step := range s.Steps {
		if _, err = s.update(ctx, tx, i); err != nil {
			break
		}
		if err = tx.QueryRowContext(ctx, text(target, readText), step.Account).Scan(&s.values[i]); err != nil {
			break
		}
	}
	return finish(tx, err)
}

// finish commits, or rolls back after an error.
func finish(tx *sql.Tx, err error) error {
	if err != nil {
		_ = tx.Rollback() // what it cannot say, the server finds out itself
		return failure{err}
	}
	err = tx.Commit()
	if o := outcome(err); o == Refused {
		return failure{err} // an answer to COMMIT is the caller's
	}
	return err
}

// makeRegisters fills the table of a target.
func (w *world) makeRegisters(d *database) {
	w.t.Helper()
	rows := make([]string, registerCount(w.o))
	for i := range rows {
		rows[i] = fmt.Sprintf("(%d, 0, 0, '')", FirstRegister+i)
	}
	for i := range len(rows) / registersEach {
		rows = append(rows, fmt.Sprintf("(%d, 0, 0, '')", FirstInOrder+i))
	}
	w.exec(d, "INSERT INTO register VALUES "+strings.Join(rows, ", "))
}
