package soak

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/txlog"
)

// worker sends one request after the other.
type worker struct {
	*app
	name string
	rng  *rand.Rand
	made int
}

// kind is a way of writing. send returns the result of each step.
type kind struct {
	name          string
	weight        int
	steps         func(dice) []Step
	atomic, reads bool
	turns, late   bool
	send          func(ctx context.Context, a *app, r *sending) error
}

// dice choose the steps of a request, for a time since the start and a pace. Contended dice
// choose the first account every fourth time.
type dice struct {
	*rand.Rand
	at        time.Duration
	pace      int
	contended bool
}

// kinds are sent without a key, and those of keyable under one, too.
var kinds = []kind{
	{name: "update", weight: 20, steps: one, send: single(update)},
	{name: "insert", weight: 10, steps: row, send: single(insert)},
	{name: "returning", weight: 8, steps: row, send: single(returning)},
	{name: "prepared", weight: 15, steps: one, send: single(prepared)},
	{name: "refused", weight: 3, steps: refused, send: single(insert)},
	{name: "local transaction", weight: 12, steps: two, atomic: true, send: localTx(false)},
	{name: "reading transaction", weight: 8, steps: two, atomic: true, reads: true, send: localTx(true)},
	{name: "immediate", weight: 10, steps: both, send: immediate},
	{name: "staged", weight: 14, steps: three, atomic: true, send: staged},
	{name: "required", weight: 6, steps: one, send: requiring(single(update))},
	{name: "unmet", weight: 2, steps: unmet, send: requiring(single(update))},
	{name: "required transaction", weight: 4, steps: two, atomic: true, send: requiring(localTx(false))},
	{name: "required staged", weight: 4, steps: three, atomic: true, send: requiring(staged)},
	{name: "unmet staged", weight: 2, steps: unmetStaged, send: requiring(staged)},
	{name: "with", weight: 10, steps: atHome, atomic: true, send: with},
	{name: "with required", weight: 4, steps: atHome, atomic: true, send: requiring(with)},
	{name: "unmet with", weight: 2, steps: unmetWith, send: requiring(with)},
	{name: "group", weight: 6, steps: transfer, turns: true, send: group(0)},
	{name: "group in time", weight: 3, steps: transfer, turns: true, late: true, send: group(2 * time.Second)},
	{name: "unmet group", weight: 2, steps: unmetTransfer, turns: true, late: true, send: requiring(group(0))},
	{name: "with group", weight: 4, steps: transferWith, turns: true, send: with},
	{name: "unmet with group", weight: 2, steps: unmetTransferWith, turns: true, late: true, send: requiring(with)},
	{name: "in order", weight: 8, steps: inOrder, send: single(update)},
	{name: "staged in order", weight: 2, steps: bothInOrder, atomic: true, send: staged},
	{name: "with in order", weight: 2, steps: withInOrder, atomic: true, send: with},
	{name: "register set", weight: 4, steps: register1(OpSet), send: single(update)},
	{name: "register add", weight: 5, steps: register1(OpAdd), send: single(update)},
	{name: "register returning", weight: 7, steps: registerP(OpAddRead), send: single(changeReturning)},
	{name: "register transaction", weight: 8, steps: register2(OpAddRead), atomic: true, reads: true, send: changeTx},
	{name: "register staged", weight: 5, steps: registers(OpAdd, OpSet), atomic: true, send: staged},
	{name: "register read", weight: 8, steps: registerP(OpRead), send: single(readRegister)},
}

var keyable = map[string]bool{
	"update": true, "required": true, "required staged": true, "insert": true, "returning": true, "prepared": true, "local transaction": true, "staged": true,
	"register set": true, "register add": true, "register returning": true, "register staged": true,
}

func amount(rng dice) int64 {
	n := 1 + rng.Int64N(99)
	if rng.IntN(2) == 0 {
		return -n
	}
	return n
}

func step(rng dice, target string) Step {
	s := Step{Target: target, Account: 1 + rng.Int64N(accounts), N: amount(rng)}
	if rng.contended && rng.IntN(4) == 0 {
		s.Account = 1
	}
	return s
}

func anyTarget(rng dice) string { return []string{bankM, bankP}[rng.IntN(2)] }

func one(rng dice) []Step { return []Step{step(rng, anyTarget(rng))} }

// row is on no account.
func row(rng dice) []Step { return []Step{{Target: anyTarget(rng), N: amount(rng)}} }

func refused(rng dice) []Step {
	return []Step{{Target: anyTarget(rng), N: tooMuch, Refuse: true}}
}

func two(rng dice) []Step {
	target := anyTarget(rng)
	return []Step{step(rng, target), step(rng, target)}
}

func both(rng dice) []Step { return []Step{step(rng, bankM), step(rng, bankP)} }

func three(rng dice) []Step {
	return append(both(rng), step(rng, anyTarget(rng)))
}

func pick(rng *rand.Rand) kind {
	var sum int
	for _, k := range kinds {
		sum += k.weight
	}
	at := rng.IntN(sum)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			return k
		}
	}
	return kinds[0]
}

// work sends requests until ctx is done. begun is called when they run.
func (w *worker) work(ctx context.Context, begun func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.Pause/2 + time.Duration(w.rng.Int64N(int64(w.Pause)))):
		}
		k := pick(w.rng)
		if keyable[k.name] && w.rng.IntN(3) == 0 {
			w.keyed()
		} else {
			w.made++
			w.send(k, fmt.Sprintf("req-%s-%d", w.name, w.made), k.steps(dice{w.rng, time.Since(w.Start), pace(w.Pause), w.Contended}), false)
		}
		if w.made > 5 {
			begun()
		}
	}
}

// keyed sends one of the current requests. They are the same in all processes, so each is sent by
// several processes, sometimes at once, or by no process.
func (w *worker) keyed() {
	faster := pace(w.Pause)
	each, window := 150*time.Millisecond/time.Duration(faster), uint64(40*faster)
	number := uint64(time.Since(w.Start)/each) + w.rng.Uint64N(window)
	rng := rand.New(rand.NewPCG(w.Seed, number))
	k := pick(rng)
	for !keyable[k.name] {
		k = pick(rng)
	}
	w.send(k, fmt.Sprintf("req-key%d", number), k.steps(dice{rng, time.Duration(number) * each, faster, w.Contended}), true)
}

// sending is a request on its way.
type sending struct {
	Line
	values   []int64
	outcomes []Outcome
	app      *app
}

func (w *worker) send(k kind, request string, steps []Step, keyed bool) {
	w.made++
	s := &sending{app: w.app, values: make([]int64, len(steps)), Line: Line{
		Event: EventSend, Send: fmt.Sprintf("%s-%d", w.name, w.made), Request: request,
		Kind: k.name, Steps: steps, Atomic: k.atomic || len(steps) == 1, Keyed: keyed, Reads: k.reads, Turns: k.turns, Late: k.late,
	}}
	for i := range s.values {
		s.values[i] = -1
	}
	// Now and then the caller has no patience.
	patience := 5 * time.Second
	if w.rng.IntN(20) == 0 {
		patience = time.Duration(1+w.rng.IntN(200)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var key *bedsql.IdempotencyKey
	if keyed {
		s.Kind = "keyed " + s.Kind
		ctx, key = bedsql.WithIdempotencyKey(ctx, request)
	}
	ctx = w.logging(ctx, s)
	s.At = clock()
	w.note(s.Line)
	err := k.send(ctx, w.app, s)
	answer := Line{Event: EventAnswer, At: clock(), Send: s.Send, Request: request, Outcomes: s.outcomes, Values: s.values}
	if answer.Outcomes == nil {
		for range steps {
			answer.Outcomes = append(answer.Outcomes, outcome(err))
		}
	}
	if err != nil {
		answer.Detail = err.Error()
	}
	answer.Replayed = key != nil && key.Replayed()
	w.note(answer)
}

// logging lets some writes have their entry beside them, or when they failed.
func (w *worker) logging(ctx context.Context, s *sending) context.Context {
	switch w.rng.IntN(4) {
	case 0:
		s.Logging = "alongside"
		return bedsql.WithLogging(ctx, bedsql.LogAlongside)
	case 1:
		s.Logging = "on failure"
		return bedsql.WithLogging(ctx, bedsql.LogOnFailure)
	}
	return ctx
}

func (s *sending) name(step int) string { return EffectName(s.Request, step) }

// failure is an error without a commit.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func outcome(err error) Outcome {
	switch {
	case err == nil || errors.Is(err, bedsql.ErrRowsUnknown):
		return Delivered
	case errors.As(err, new(*bedsql.CompensatedError)):
		return Undone
	case errors.As(err, new(failure)):
		return Failed
	case errors.Is(err, txlog.ErrInDoubt):
		return Doubt
	case errors.Is(err, bedsql.ErrUnknownOutcome):
		return Unknown
	case errors.Is(err, bedsql.ErrPending):
		return Pending
	case errors.Is(err, bedsql.ErrNotLogged):
		return NotLogged
	case errors.Is(err, context.DeadlineExceeded):
		return Failed
	default:
		return Refused
	}
}

// tooMuch is more than the tables take.
const tooMuch = 1000

const (
	updateText = "UPDATE account SET balance = balance + ?, request = ? WHERE id = ?"
	insertText = "INSERT INTO effect (request, account, n) VALUES (?, ?, ?)"
)

// text replaces placeholders for PostgreSQL.
func text(target, query string) string {
	if target == bankM {
		return query
	}
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func single(write func(ctx context.Context, pool *sql.DB, s *sending, step int) error) func(context.Context, *app, *sending) error {
	return func(ctx context.Context, a *app, s *sending) error {
		return write(ctx, a.pools[s.Steps[0].Target], s, 0)
	}
}

func (s *sending) update(ctx context.Context, on execer, i int) (sql.Result, error) {
	step := s.Steps[i]
	if step.Op == OpInOrder {
		ctx = bedsql.WithOrderKey(ctx, strconv.FormatInt(step.Account, 10))
	}
	if step.Op != "" {
		return on.ExecContext(ctx, text(step.Target, changeText[step.Op]), step.N, step.N, s.name(i), step.Account)
	}
	return on.ExecContext(ctx, text(step.Target, updateText), step.N, s.name(i), step.Account)
}

// rows notes a Result's number of rows.
func (s *sending) rows(i int, res sql.Result) error {
	n, err := res.RowsAffected()
	if errors.Is(err, bedsql.ErrRowsUnknown) {
		return nil
	}
	if err == nil {
		s.values[i] = n
	}
	return err
}

func update(ctx context.Context, pool *sql.DB, s *sending, i int) error {
	res, err := s.update(ctx, pool, i)
	if err != nil {
		return err
	}
	return s.rows(i, res)
}

// insert leaves the effect itself, on no account: its id is generated.
func insert(ctx context.Context, pool *sql.DB, s *sending, i int) error {
	res, err := pool.ExecContext(ctx, text(s.Steps[i].Target, insertText), s.name(i), s.Steps[i].Account, s.Steps[i].N)
	if err != nil {
		return err
	}
	return s.rows(i, res)
}

func returning(ctx context.Context, pool *sql.DB, s *sending, i int) error {
	return s.returned(ctx, pool, i, insertText+" RETURNING id", s.name(i), s.Steps[i].Account, s.Steps[i].N)
}

// returned notes the value returned by a write.
func (s *sending) returned(ctx context.Context, pool *sql.DB, i int, query string, args ...any) error {
	rows, err := pool.QueryContext(ctx, text(s.Steps[i].Target, query), args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := rows.Scan(&s.values[i]); err != nil {
			return s.unread(i, err)
		}
	}
	return s.unread(i, rows.Err())
}

// unread is the outcome of a write whose Query succeeded: it is delivered, even if the caller's
// context ends before the rows are read.
func (s *sending) unread(i int, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		s.values[i] = -1
		return nil
	}
	return err
}

func prepared(ctx context.Context, pool *sql.DB, s *sending, i int) error {
	stmt, err := pool.PrepareContext(ctx, text(s.Steps[i].Target, updateText))
	if err != nil {
		return failure{err}
	}
	defer func() { _ = stmt.Close() }()
	res, err := stmt.ExecContext(ctx, s.Steps[i].N, s.name(i), s.Steps[i].Account)
	if err != nil {
		return err
	}
	return s.rows(i, res)
}

func localTx(reads bool) func(context.Context, *app, *sending) error {
	return func(ctx context.Context, a *app, s *sending) error {
		target := s.Steps[0].Target
		tx, err := a.pools[target].BeginTx(ctx, nil)
		if err != nil {
			return failure{err}
		}
		for i, step := range s.Steps {
			if reads {
				var balance int64
				if err = tx.QueryRowContext(ctx, text(target, "SELECT balance FROM account WHERE id = ?"), step.Account).Scan(&balance); err != nil {
					break
				}
			}
			var res sql.Result
			if res, err = s.update(ctx, tx, i); err != nil {
				break
			}
			if err = s.rows(i, res); err != nil {
				break
			}
		}
		return finish(tx, err)
	}
}

// immediate notes the result of each Exec, and End's report on each.
func immediate(ctx context.Context, a *app, s *sending) error {
	sctx, soft, err := bedsql.Begin(ctx)
	if err != nil {
		return failure{err}
	}
	s.outcomes = make([]Outcome, len(s.Steps))
	var all []error
	for i, step := range s.Steps {
		res, err := s.update(sctx, a.pools[step.Target], i)
		s.outcomes[i] = outcome(err)
		if err == nil {
			s.app.note(Line{Event: EventStep, Send: s.Send, Request: s.Request, Step: i})
			if n, err := res.RowsAffected(); err == nil && n > 0 {
				s.values[i] = n
			}
		}
		all = append(all, err)
	}
	end := soft.End(ctx)
	var each *bedsql.EndError
	if errors.As(end, &each) {
		s.ended(each)
	} else if end != nil {
		all = append(all, errors.New("End gives no EndError"))
		s.outcomes[0] = Refused
	}
	return errors.Join(append(all, end)...)
}

func staged(ctx context.Context, a *app, s *sending) error {
	sctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return failure{err}
	}
	defer soft.Discard()
	results := make([]sql.Result, len(s.Steps))
	for i, step := range s.Steps {
		if results[i], err = s.update(sctx, a.pools[step.Target], i); err != nil {
			return failure{err}
		}
	}
	end := soft.End(ctx)
	var each *bedsql.EndError
	if errors.As(end, &each) && (len(each.Pending()) > 0 || len(each.Refused()) > 0) {
		s.outcomes = make([]Outcome, len(s.Steps))
		for i := range s.outcomes {
			s.outcomes[i] = Delivered
		}
		s.ended(each)
	}
	if end == nil {
		for i, res := range results {
			if err := s.rows(i, res); err != nil {
				return err
			}
		}
	}
	return end
}

// ended notes End's reports on the steps, by data source.
func (s *sending) ended(each *bedsql.EndError) {
	for i, step := range s.Steps {
		for _, p := range each.Pending() {
			if p.DataSource == step.Target {
				s.outcomes[i] = outcome(p)
			}
		}
		for _, r := range each.Refused() {
			if r.DataSource == step.Target {
				s.outcomes[i] = Refused
			}
		}
	}
}
