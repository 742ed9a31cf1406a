package bedsql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/txlog"
)

// TxOption changes a soft transaction.
type TxOption func(*SoftTransaction)

// SoftTransaction groups writes for any databases that are expected to arrive eventually. A failed
// write under its context does not stop the following ones, because Exec does not return the
// failure. Exec returns a Result with 0 rows and keeps the entry: pending for the job, or parked
// at once with its error if the database refused it. End reports it.
//
// Exec still returns an error that a crash of the caller before End would hide: the write's entry
// could not be written (ErrNotLogged), or may not have been (ErrUnknownOutcome). Query also
// returns its errors, because no rows can be invented. So do the statements of a local transaction
// before its COMMIT. Any other pending COMMIT is reported by End alone.
//
// Without Staged or WithTx it is immediate, Sharding-JDBC's kind: each write runs when Exec is
// called, and a crash between two writes loses the second, because it was never logged. It is safe
// for concurrent use.
type SoftTransaction struct {
	id string
	// ctx is Begin's context. staged holds the recorded writes of a staged one.
	ctx    context.Context
	staged *staging
	// home is the transaction with the entries; nil without WithTx. Its staged then belongs to
	// home.
	home *home
	// unusable is why it cannot be begun.
	unusable error
	// key is the key in Begin's context: a staged group is one request under it.
	key *keyed.Key
	// compensateAfter is CompensateAfter's.
	compensateAfter time.Duration

	mu       sync.Mutex
	running  int
	idle     chan struct{} // closed when running falls to 0 after ended
	ended    bool
	problems []error
	// arrived are the data sources with a delivered write.
	arrived []string
}

// Begin opens a soft transaction. Writes under the returned context, through any wrapped driver,
// belong to it until End. It returns ErrNested for a ctx with an open one, the error of an ended
// ctx, and an error for an unusable argument of WithTx.
func Begin(ctx context.Context, opts ...TxOption) (context.Context, *SoftTransaction, error) {
	if err := ctx.Err(); err != nil {
		return ctx, nil, err
	}
	if outer := scopeOf(ctx).soft; outer != nil && !outer.isEnded() {
		return ctx, nil, fmt.Errorf("%w (%s)", ErrNested, outer.id)
	}
	in := scopeOf(ctx)
	s := &SoftTransaction{id: entry.NewID(), ctx: ctx, key: in.key, idle: make(chan struct{})}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	if s.unusable == nil && s.compensateAfter > 0 && s.staged == nil {
		s.unusable = errors.New("bed: CompensateAfter needs a compensable group: begin it with Staged or WithTx")
	}
	if s.unusable != nil {
		return ctx, nil, s.unusable
	}
	if s.home != nil && s.home.covered {
		s.key, in.key = nil, nil
	}
	in.soft, in.undo = s, false
	return kept.InGroup(in.in(ctx)), s, nil
}

// Compensation returns a context under which a write is recorded as the compensation of the
// group's write at the same data source:
//
//	_, err = stock.ExecContext(sctx, "UPDATE stock SET n = n - 1 WHERE article = ?", "apple")
//	_, err = stock.ExecContext(soft.Compensation(sctx), "UPDATE stock SET n = n + 1 WHERE article = ?", "apple")
//
// It is for groups that are Staged or made by WithTx, and makes all their writes ExactlyOnce. The
// compensation is logged with the entries of the group, in the same durable step. It runs only if
// a database refuses a part of the group (RequireRows and AtLeastRows too), CompensateAfter has
// passed, or an operator orders it (bed-job compensate). Then no further part of the group is
// applied. The data sources with an applied part are compensated, the last one first, each in one
// local transaction. An unknown outcome never starts a compensation: receipts show which parts
// were applied.
//
// End returns a *CompensatedError after a compensation within the call, and ErrPending if the job
// goes on with it. If a database refuses its compensation, the group stays half compensated, for
// an operator. An applied part without a compensation stays as it is, and End names it in
// EndError.Delivered.
//
// Record the write before its compensation: a compensation for a data source without a write of
// the group is an error. The exception is the database of the transaction of WithTx. Send the
// compensation of the transaction's own rows through a bed pool of that database, never through
// the transaction. Compensations follow the rules of staged writes, and their
// Results always return ErrStaged. Statements other than plain DML and queries are refused, and so
// is a group under an idempotency key. A query runs at once.
//
// The job needs every data source with a compensation.
func (s *SoftTransaction) Compensation(ctx context.Context) context.Context {
	return scoped(ctx, func(in *scope) { in.soft, in.undo = s, true })
}

// ID is the transaction's id, which its entries carry as transaction_id.
func (s *SoftTransaction) ID() string { return s.id }

// End closes the soft transaction. It returns nil if every write was delivered, and otherwise an
// *EndError with the refused writes (Refused) and the pending ones (Pending). errors.Is(err,
// ErrPending) holds for an EndError with a pending write. errors.As finds the first *RefusedError,
// and the first of the drivers' own errors. End waits for writes that still run in other
// goroutines. When ctx ends first, their outcome is unknown (ErrUnknownOutcome), and a later End
// may report it. Writes begun after End get ErrEnded. A second End reports the same.
func (s *SoftTransaction) End(ctx context.Context) error {
	if s.staged != nil && scopeOf(ctx).confined && !s.ofRequest() {
		return ErrOutsideRequest
	}
	s.mu.Lock()
	first := !s.ended
	s.ended = true
	switch {
	case first && s.staged != nil:
		s.running++
		s.mu.Unlock()
		s.endStaged(ctx)
		s.mu.Lock()
	case first && s.running == 0:
		close(s.idle)
	}
	s.mu.Unlock()
	var late error
	select {
	case <-s.idle:
	default:
		select {
		case <-s.idle:
		case <-ctx.Done():
			late = because(ErrUnknownOutcome, fmt.Errorf("writes of soft transaction %s were still running at its end: %w", s.id, ctx.Err()))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := slices.Clone(s.problems)
	if late != nil {
		problems = append(problems, late)
	}
	if len(problems) == 0 {
		return nil
	}
	return &EndError{Errors: problems, Delivered: slices.Clone(s.arrived)}
}

// endStaged is finishStaged for End. A driver's panic goes on to the caller of End, after
// everything is reported and no one is left waiting.
func (s *SoftTransaction) endStaged(ctx context.Context) {
	problems := []error{because(ErrUnknownOutcome, fmt.Errorf("the end of the staged soft transaction %s panicked", s.id))}
	defer func() {
		s.report(problems...)
		s.leave()
	}()
	var panicked any
	if problems, panicked = s.finishStaged(ctx); panicked != nil {
		panic(panicked)
	}
}

func (s *SoftTransaction) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// enter announces a write; leave must follow.
func (s *SoftTransaction) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return fmt.Errorf("%w (%s): the write was neither logged nor sent", ErrEnded, s.id)
	}
	s.running++
	return nil
}

func (s *SoftTransaction) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running == 0 && s.ended {
		close(s.idle)
	}
}

// left is a deferred leave for a write. After a driver's panic the write is in the log, and End
// reports it.
func (s *SoftTransaction) left(d *besteffort.InFlight) {
	p := recover()
	if p != nil && d.Unit != nil {
		s.report(d.Panicked(p))
	}
	s.leave()
	if p != nil {
		panic(p)
	}
}

// arrive notes a delivered write to a data source.
func (s *SoftTransaction) arrive(dataSource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.arrived, dataSource) {
		s.arrived = append(s.arrived, dataSource)
	}
}

// swallow keeps a pending or refused write's error for End. It returns false if the caller must
// get the error now, because the log may hold nothing.
func (s *SoftTransaction) swallow(err error) bool {
	inDoubt := errors.Is(err, txlog.ErrInDoubt)
	if !inDoubt && !errors.Is(err, ErrPending) && !errors.As(err, new(*RefusedError)) {
		return false
	}
	s.report(err)
	return !inDoubt
}

// report keeps errors for End.
func (s *SoftTransaction) report(problems ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, problems...)
}

// isHome reports whether s is made by WithTx; s may be nil.
func (s *SoftTransaction) isHome() bool { return s != nil && s.home != nil }
