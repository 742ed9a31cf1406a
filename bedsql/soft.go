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
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// TxOption changes a soft transaction.
type TxOption func(*SoftTransaction)

// SoftTransaction ties writes together, whichever databases they are for, that
// are expected to arrive eventually. A write under its context that fails does
// not stop the ones after it, because Exec does not return the failure: it
// returns a Result with 0 rows, the entry is kept (pending for the job; parked
// at once with its error when the database refused it), and End reports it.
//
// Exec still returns what could not be reported later if the caller died before End:
// the error of a write whose entry could not be written (ErrNotLogged), or
// may not have been (ErrUnknownOutcome). Query returns its errors too, since no rows can be
// invented, and so do the statements of a local transaction before its COMMIT. Any
// other COMMIT left pending is reported by End alone.
//
// Unless it is Staged or made by WithTx it is immediate, Sharding-JDBC's kind: each write runs when
// Exec is called, and a crash between two of them loses the second, which was never
// logged. It is safe for concurrent use.
type SoftTransaction struct {
	id string
	// ctx is that of Begin, staged is what was recorded; both are set for staged
	// ones only.
	ctx    context.Context
	staged *staging
	// home is the transaction that the entries are written in; nil unless it is made by
	// With. Its staged is home's then.
	home *home
	// unusable is why it cannot be begun.
	unusable error
	// key is that of Begin's context: a staged group is one request under it.
	key *IdempotencyKey
	// turnAfter is CompensateAfter's.
	turnAfter time.Duration

	mu       sync.Mutex
	running  int
	idle     chan struct{} // closed when running falls to 0 after ended
	ended    bool
	problems []error
	// arrived are the data sources to which a write was delivered.
	arrived []string
}

// Begin opens a soft transaction. Writes under the returned context, through
// any wrapped driver, belong to it until End. It returns ErrNested if ctx carries
// one that has not ended, the error of ctx if that has ended, and an error for what With
// cannot use.
func Begin(ctx context.Context, opts ...TxOption) (context.Context, *SoftTransaction, error) {
	if err := ctx.Err(); err != nil {
		return ctx, nil, err
	}
	if outer := scopeOf(ctx).soft; outer != nil && !outer.isEnded() {
		return ctx, nil, fmt.Errorf("%w (%s)", ErrNested, outer.id)
	}
	in := scopeOf(ctx)
	s := &SoftTransaction{id: txlog.NewID(), ctx: ctx, key: in.key, idle: make(chan struct{})}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	if s.unusable == nil && s.turnAfter > 0 && s.staged == nil {
		s.unusable = errors.New("bed: CompensateAfter needs a group that can be undone: begin it with Staged or WithTx")
	}
	if s.unusable != nil {
		return ctx, nil, s.unusable
	}
	if s.home != nil && kept.Covers(ctx, s.home.tx) {
		s.key, in.key = nil, nil
	}
	in.soft, in.undo = s, false
	return kept.InGroup(in.in(ctx)), s, nil
}

// Compensation returns a context under which a write is recorded to undo what the group
// does at the write's data source:
//
//	_, err = stock.ExecContext(sctx, "UPDATE stock SET n = n - 1 WHERE article = ?", "apple")
//	_, err = stock.ExecContext(soft.Compensation(sctx), "UPDATE stock SET n = n + 1 WHERE article = ?", "apple")
//
// It is for groups that are Staged or made by WithTx, and makes all their writes
// ExactlyOnce. What is recorded is logged with the entries of the group, in the same
// durable step, and does not run unless the group turns back: because a database refuses a
// part of it (RequireRows and AtLeastRows too), because CompensateAfter has passed, or
// because an operator says so (bed-job compensate). Then nothing more of the group is
// applied, and for each data source, the last one first, the compensation runs in one local
// transaction if, and only if, the group's part was applied there. An unknown outcome never
// turns a group: receipts tell what was applied.
//
// End returns a *CompensatedError when all was undone within the call, and ErrPending when
// the group has turned and the job goes on undoing it. A compensation that its database
// refuses leaves the group half undone, for an operator. A part for which nothing is
// recorded stays as it is if it was applied, and End names it in EndError.Delivered.
//
// Record the write before its compensation: one for a data source that the group does not
// write to is an error. The exception is the database of the transaction of WithTx: send what
// undoes the transaction's own rows through a bed pool of that database, never through
// the transaction; where that is of a bare driver, any data source without a write of the
// group is taken to be its own. Compensations follow the rules of staged writes, and their
// Results give ErrStaged for ever. Whatever is neither plain DML nor a query is refused,
// and so is a group under an idempotency key. A query runs at once.
//
// The job needs every data source that is to be undone.
func (s *SoftTransaction) Compensation(ctx context.Context) context.Context {
	in := scopeOf(ctx)
	in.soft, in.undo = s, true
	return in.in(ctx)
}

// ID is the transaction's id, which its entries carry as transaction_id.
func (s *SoftTransaction) ID() string { return s.id }

// End closes the soft transaction and reports: nil when every write was
// delivered; otherwise an *EndError, which gives each write that was refused
// (Refused) and each that is pending (Pending). errors.Is(err, ErrPending) holds
// if any is pending; errors.As finds the first *RefusedError, and the first of
// the drivers' own errors. It waits for writes that still run in other
// goroutines; when ctx ends first, the outcome of those is unknown
// (ErrUnknownOutcome), and a later End may report it. Writes begun after End get ErrEnded. A second End
// reports the same.
func (s *SoftTransaction) End(ctx context.Context) error {
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

// endStaged is finishStaged for End. A driver's panic goes on to the caller of
// End, after everything is reported and nobody is left waiting.
func (s *SoftTransaction) endStaged(ctx context.Context) {
	problems := []error{because(ErrUnknownOutcome, fmt.Errorf("the end of the staged soft transaction %s panicked", s.id))}
	defer func() {
		s.mu.Lock()
		s.problems = append(s.problems, problems...)
		s.mu.Unlock()
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

// left is leave for a write, to be deferred: a write that a driver's panic cuts
// short is in the log, and End reports it.
func (s *SoftTransaction) left(d *besteffort.InFlight) {
	p := recover()
	if p != nil && d.Unit != nil {
		s.mu.Lock()
		s.problems = append(s.problems, d.Panicked(p))
		s.mu.Unlock()
	}
	s.leave()
	if p != nil {
		panic(p)
	}
}

// arrive notes that a write to a data source was delivered.
func (s *SoftTransaction) arrive(dataSource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.arrived, dataSource) {
		s.arrived = append(s.arrived, dataSource)
	}
}

// forget takes it back that anything was delivered.
func (s *SoftTransaction) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived = nil
}

// swallow keeps a pending or refused write's error for End. It reports whether
// the caller need not know earlier, as it must if the log may hold nothing.
func (s *SoftTransaction) swallow(err error) bool {
	var refused *listener.RefusedError
	inDoubt := errors.Is(err, txlog.ErrInDoubt)
	if !inDoubt && !errors.Is(err, ErrPending) && !errors.As(err, &refused) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, err)
	return !inDoubt
}

// isHome reports whether s is made by WithTx; s may be nil.
func (s *SoftTransaction) isHome() bool { return s != nil && s.home != nil }
