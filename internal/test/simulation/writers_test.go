package simulation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/bedsql"
)

// part is one write of a request, into a row of its own.
type part struct {
	request *request
	source  int
	id      int
	how     how
	need    need
	// beside is the second row of a write that changes two.
	beside int
	// number is its place under its order key.
	number int64
	// undo is its compensation in a compensable group, and undoes the part that it compensates.
	undo, undoes *part
}

// how a statement is sent.
type how int

const (
	asText how = iota
	withParameters
	asPrepared
	ways
)

// statement names its table's database, and the row in its text.
func (p *part) statement() (string, []any) {
	if p.beside > 0 {
		text := fmt.Sprintf("UPDATE shop.effect /* row %d */ SET n = n + 1 WHERE id IN (?, ?)", p.id)
		if p.need == theGate {
			text += " AND n < 1"
		}
		if p.how != asText {
			return text, []any{p.id, p.beside}
		}
		return strings.Replace(text, "?, ?", fmt.Sprintf("%d, %d", p.id, p.beside), 1), nil
	}
	if p.how != asText {
		return fmt.Sprintf("UPDATE shop.effect /* row %d */ SET n = n + 1 WHERE id = ?", p.id), []any{p.id}
	}
	return fmt.Sprintf("UPDATE shop.effect /* row %d */ SET n = n + 1 WHERE id = %d", p.id, p.id), nil
}

// sending is a request sent once.
type sending struct {
	by       *process
	answered bool
	// lost means that its process was killed before the answer.
	lost bool
	err  error
	// said are the parts with a successful statement.
	said map[*part]bool
	// undone: the application rolled it back by itself.
	undone bool
	// meant marks an error caused by the application itself, with or without faults.
	meant bool
	// committed: the Commit of its transaction with entries succeeded.
	committed bool
	// late means that its key might be forgotten by then. replayed means that it was not, or that
	// an earlier sending was applied first: one of those beside, sent before its answer.
	late, replayed bool
	beside         []*sending
}

// request is work to do once; it is sent again only under a key.
type request struct {
	id   int
	kind kind
	// logging is when its log is written; a staged group's is always before.
	logging  bedsql.Logging
	key      string
	order    string // its order key
	parts    []*part
	sendings []*sending
	// units are all units of its logs seen so far.
	units map[string]bool
	// discarded: an operator did so with one of its logs.
	discarded bool
	first     time.Time
	// group is its id if it is compensable, after turnAfter unless that is 0. turned means that an
	// operator compensated it.
	group     string
	turnAfter time.Duration
	turned    bool
}

func (r *request) String() string {
	return fmt.Sprintf("request %d (%s)", r.id, r.kind.name)
}

// sender names its last sender.
func (r *request) sender() string { return fmt.Sprintf("writer %d.%d", r.id, len(r.sendings)) }

// kind is a way to write.
type kind struct {
	name  string
	keyed bool
	// local: it is one local transaction of the application's.
	local bool
	// parts are the data sources of its writes.
	parts []int
	send  func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error
	// needs are the requirements of its writes; nil for none.
	needs []need
}

// spans reports whether it writes into several data sources.
func (k kind) spans() bool { return slices.Max(k.parts) > 0 }

var kinds = []kind{
	{"write", false, false, []int{0}, sendWrite, nil},
	{"write under a key", true, false, []int{0}, sendWrite, nil},
	{"local transaction", false, true, []int{0, 0}, inTx(txCommits), nil},
	{goesOn, false, true, []int{0, 0, 0}, inTx(txGoesOn), nil},
	{thatRead, false, true, []int{0, 0}, inTx(txReads), nil},
	{thatIsUndone, false, true, []int{0, 0}, inTx(txRollsBack), nil},
	{"local transaction under a key", true, true, []int{0, 0}, inTx(txCommits), nil},
	{"staged group", false, false, []int{0, 1, 1}, sendStaged, nil},
	{"staged group under a key", true, false, []int{0, 0, 1}, sendStaged, nil},
}

func sendWrite(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
	return write(ctx, pools[0], r.parts[0], s)
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// write runs a part. It prepares only inside a transaction: closing a pool's statement waits for a
// mutex, and the bubble does not count that as waiting.
func write(ctx context.Context, on execer, p *part, s *sending) error {
	text, args := p.statement()
	ctx = p.requires(ctx)
	var err error
	if tx, ok := on.(*sql.Tx); ok && p.how == asPrepared {
		var st *sql.Stmt
		if st, err = tx.PrepareContext(ctx, text); err != nil {
			return err
		}
		defer func() { _ = st.Close() }()
		_, err = st.ExecContext(ctx, args...)
	} else {
		_, err = on.ExecContext(ctx, text, args...)
	}
	if err == nil {
		s.said[p] = true
	}
	return err
}

// How a local transaction behaves.
type behaviour int

const (
	txCommits behaviour = iota
	txGoesOn
	txReads
	txRollsBack
)

func inTx(b behaviour) func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
	return func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
		tx, err := pools[0].BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		goesOn := func(err error) bool {
			return err == nil || b == txGoesOn && !errors.Is(err, bedsql.ErrTransactionLost)
		}
		for i, p := range r.parts {
			if b == txReads && i == 0 || b == txGoesOn && i == 1 && p.how != asText {
				var n int
				if err := tx.QueryRowContext(ctx, "SELECT n FROM shop.effect WHERE id = ?", p.id).Scan(&n); !goesOn(err) {
					return err
				}
			}
			if err := write(ctx, tx, p, s); !goesOn(err) {
				return err
			}
		}
		if b == txRollsBack {
			s.undone = true
			return tx.Rollback()
		}
		return tx.Commit()
	}
}

func sendStaged(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
	ctx, soft, err := bedsql.Begin(ctx, r.options(bedsql.Staged())...)
	if err != nil {
		return err
	}
	r.group = soft.ID()
	for _, p := range r.parts {
		err := write(ctx, pools[p.source], p, s)
		if err == nil && p.undo != nil {
			err = write(soft.Compensation(ctx), pools[p.source], p.undo, s)
		}
		if err != nil {
			soft.Discard()
			return err
		}
	}
	return soft.End(ctx)
}
