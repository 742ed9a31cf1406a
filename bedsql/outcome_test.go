package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// exported has the outcome of every exported error that a caller may get. Decide the outcome of a
// new one here.
var exported = map[string]struct {
	err  error
	want Outcome
}{
	"bedsql.ErrPending":          {ErrPending, OutcomeAccepted},
	"bedsql.ErrNotLogged":        {ErrNotLogged, OutcomeNotAccepted},
	"bedsql.ErrUnknownOutcome":   {ErrUnknownOutcome, OutcomeUnknown},
	"bedsql.ErrNested":           {ErrNested, OutcomeRefused},
	"bedsql.ErrEnded":            {ErrEnded, OutcomeRefused},
	"bedsql.ErrStaged":           {ErrStaged, OutcomeRefused},
	"bedsql.ErrKeyReused":        {ErrKeyReused, OutcomeRefused},
	"bedsql.ErrOvertaken":        {ErrOvertaken, OutcomeRefused},
	"bedsql.ErrOrderUnusable":    {ErrOrderUnusable, OutcomeRefused},
	"bedsql.ErrKeyUnusable":      {ErrKeyUnusable, OutcomeRefused},
	"bedsql.ErrOutsideRequest":   {ErrOutsideRequest, OutcomeRefused},
	"bedsql.ErrNotIdempotent":    {ErrNotIdempotent, OutcomeRefused},
	"bedsql.ErrPinned":           {ErrPinned, OutcomeRefused},
	"bedsql.ErrTransactionLost":  {because(ErrTransactionLost, io.ErrUnexpectedEOF), OutcomeNotAccepted},
	"bedsql.ErrRolledBack":       {ErrRolledBack, OutcomeNotAccepted},
	"bedsql.ErrNotCommitted":     {ErrNotCommitted, OutcomeUnknown},
	"bedsql.LogElsewhereError":   {&LogElsewhereError{Cause: answer("42501")}, OutcomeRefused},
	"bedsql.ErrRowsUnknown":      {because(ErrRowsUnknown, context.Canceled), OutcomeDelivered},
	"bedsql.PendingError":        {&PendingError{Cause: errors.Join(context.Canceled, answer("23505"))}, OutcomeAccepted},
	"bedsql.NotLoggedError":      {&NotLoggedError{Cause: io.EOF, Attempt: answer("23505")}, OutcomeNotAccepted},
	"bedsql.UnknownOutcomeError": {&UnknownOutcomeError{Cause: context.Canceled}, OutcomeUnknown},
	"bedsql.RefusedError":        {&RefusedError{Cause: answer("40001")}, OutcomeRefused},
	"bedsql.RowsError":           {&RowsError{Want: 1}, OutcomeRefused},
	"bedsql.CompensatedError":    {&CompensatedError{Cause: answer("40001")}, OutcomeCompensated},
	"bedsql.EndError":            {&EndError{Errors: []error{&RefusedError{Cause: io.EOF}, &PendingError{Cause: io.EOF}}}, OutcomePartlyRefused},
	"dialect.EntriesError":       {&LogElsewhereError{Cause: &dialect.EntriesError{Err: io.EOF}}, OutcomeRefused},
	"dialect.ErrVoided":          {dialect.ErrVoided, OutcomeNotAccepted},
	"dialect.ErrKeyReused":       {dialect.ErrKeyReused, OutcomeRefused},
	"dialect.ErrOvertaken":       {dialect.ErrOvertaken, OutcomeRefused},
	"dialect.ReceiptTableError":  {&dialect.ReceiptTableError{Err: io.EOF}, OutcomeRefused},
	"dialect.RowsError":          {&dialect.RowsError{Want: 1}, OutcomeRefused},
	"dialect.ReceiptRightsError": {&dialect.ReceiptRightsError{Err: io.EOF}, OutcomeRefused},
	"target.ElsewhereError":      {target.OtherPlace("a", "b"), OutcomeNotAccepted},
	"target.LogError":            {&target.LogError{Err: io.EOF}, OutcomeNotAccepted},
	"txlog.ParamError":           {&txlog.ParamError{Err: io.EOF}, OutcomeRefused},
	"txlog.ErrUnstorable":        {txlog.ErrUnstorable, OutcomeRefused},
}

// insideOnly are exported errors that reach a caller as the cause of another
// error, or not at all.
var insideOnly = []string{
	"txlog.ErrInDoubt", "txlog.ErrUnconfirmed", "txlog.ErrLeaseLost", "txlog.ErrUnusable", "txlog.ErrNotFound",
	"txlog.ErrLeased", "txlog.ErrCompensated", "txlog.ErrGroup", "txlog.ErrLogElsewhere", "txlog.ErrNotFirst", "bedsql.BehindError", "txlog.ErrClosed",
	"dialect.EntriesError",
}

type answer string

func (a answer) Error() string    { return "the database says " + string(a) }
func (a answer) SQLState() string { return string(a) }

func TestEveryExportedErrorHasAnOutcome(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for name := range exported {
		known[name] = true
	}
	for _, name := range insideOnly {
		known[name] = true
	}
	for pkg, dir := range map[string]string{"bedsql": ".", "dialect": "../internal/dialect", "txlog": "../txlog", "target": "../internal/target"} {
		for _, name := range exportedErrors(t, dir) {
			if name = pkg + "." + name; !known[name] {
				t.Errorf("%s is exported, and it is not decided what OutcomeOf says of it", name)
			}
			delete(known, name)
		}
	}
	for name := range known {
		t.Errorf("%s is listed, and there is none", name)
	}
}

// exportedErrors returns the names of a package's exported error values and types.
func exportedErrors(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						if strings.HasPrefix(name.Name, "Err") {
							names = append(names, name.Name)
						}
					}
				case *ast.TypeSpec:
					if name := s.Name.Name; ast.IsExported(name) && strings.HasSuffix(name, "Error") {
						names = append(names, name)
					}
				}
			}
		}
	}
	return names
}

func TestOutcomeOfLooksThroughWhatIsWrapped(t *testing.T) {
	t.Parallel()
	mine := errors.New("my own")
	for name, e := range exported {
		for how, err := range map[string]error{
			"itself":           e.err,
			"wrapped":          fmt.Errorf("taking the order: %w", e.err),
			"wrapped twice":    fmt.Errorf("1: %w", fmt.Errorf("2: %w", e.err)),
			"wrapped in two":   fmt.Errorf("%w: %w", mine, e.err),
			"joined":           errors.Join(mine, e.err),
			"joined by itself": errors.Join(e.err, e.err),
		} {
			if got := OutcomeOf(err); got != e.want {
				t.Errorf("%s, %s: %v, want %v", name, how, got, e.want)
			}
		}
	}
}

func TestOutcomeOfWhatIsNotOfThisPackage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, OutcomeDelivered},
		{context.Canceled, OutcomeNotAccepted},
		{context.DeadlineExceeded, OutcomeNotAccepted},
		{sql.ErrNoRows, OutcomeDelivered},
		{fmt.Errorf("sql: Scan error on column index 0: %w", errors.New("invalid syntax")), OutcomeDelivered},
		{errors.New("sql: expected 2 destination arguments in Scan, not 1"), OutcomeDelivered},
		{errors.New("sql: expected 2 arguments, got 1"), OutcomeRefused},
		{sql.ErrTxDone, OutcomeNotAccepted},
		{driver.ErrBadConn, OutcomeUnknown},
		{io.ErrUnexpectedEOF, OutcomeUnknown},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, OutcomeUnknown},
		{errors.New("invalid connection"), OutcomeUnknown},
		{errors.New("bed: nobody has said what this means"), OutcomeUnknown},
		{errors.New("bed: the server gave no result of a compound statement"), OutcomeUnknown},
		{errors.New("sql: nobody has said what this means"), OutcomeUnknown},
		{&PendingError{Cause: fmt.Errorf("%w: no answer", txlog.ErrInDoubt)}, OutcomeUnknown},
		{&UnknownOutcomeError{Log: txlog.ErrInDoubt}, OutcomeUnknown},
		{&PendingError{Cause: answer("40001"), Compensating: true}, OutcomeCompensated},
		{&EndError{Errors: []error{&PendingError{Cause: answer("23505"), Compensating: true, Parked: true}}}, OutcomeCompensated},
		{errNotLookedFor, OutcomeRefused},
		{fmt.Errorf("bed: nothing was run: %w", &txlog.ParamError{Err: io.EOF}), OutcomeRefused},
		{attempt.Certain(io.EOF, dialect.Unreachable), OutcomeNotAccepted},
		{because(ErrStaged, context.Canceled), OutcomeRefused},
	} {
		if got := OutcomeOf(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestOutcomeOfSeveralWritesCoversAll(t *testing.T) {
	t.Parallel()
	var (
		refused  error = &RefusedError{Cause: io.EOF}
		pending  error = &PendingError{Cause: io.EOF}
		unknown  error = &UnknownOutcomeError{Cause: io.EOF}
		down     error = &NotLoggedError{Cause: io.EOF}
		canceled       = fmt.Errorf("bed: discarded: %w", context.Canceled)
	)
	for _, c := range []struct {
		errs      []error
		delivered []string
		want      Outcome
	}{
		{[]error{pending}, nil, OutcomeAccepted},
		{[]error{pending, pending}, []string{"a"}, OutcomeAccepted},
		{[]error{refused}, nil, OutcomeRefused},
		{[]error{refused, refused}, nil, OutcomeRefused},
		{[]error{refused}, []string{"a"}, OutcomePartlyRefused},
		{[]error{refused, pending}, nil, OutcomePartlyRefused},
		{[]error{ErrKeyReused}, []string{"a"}, OutcomePartlyRefused},
		{[]error{down, down}, nil, OutcomeNotAccepted},
		{[]error{canceled}, nil, OutcomeNotAccepted},
		{[]error{refused, down}, nil, OutcomeRefused},
		{[]error{down}, []string{"a"}, OutcomePartlyRefused},
		{[]error{refused, unknown}, []string{"a"}, OutcomeUnknown},
		{nil, nil, OutcomeUnknown},
	} {
		end := &EndError{Errors: c.errs, Delivered: c.delivered}
		if got := OutcomeOf(end); got != c.want {
			t.Errorf("%v and delivered %v: %v, want %v", c.errs, c.delivered, got, c.want)
		}
		if len(c.delivered) == 0 && len(c.errs) > 0 {
			if got := OutcomeOf(errors.Join(c.errs...)); got != c.want {
				t.Errorf("%v joined: %v, want %v", c.errs, got, c.want)
			}
		}
	}
}

func TestAnyNumberIsAnOutcomeWithAName(t *testing.T) {
	t.Parallel()
	for o := range OutcomeUnknown + 1 {
		if o.String() == "" {
			t.Errorf("outcome %d has no name", uint8(o))
		}
	}
	if o := Outcome(200); o.String() != "unknown" {
		t.Errorf("Outcome(200): %v", o)
	}
}

func TestCountersAndEventsSayWhatOutcomeOfSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		event string
		count func(*Counters) uint64
	}{
		{&PendingError{Cause: io.EOF}, "pending", func(n *Counters) uint64 { return n.Pending.Load() }},
		{&PendingError{Cause: io.EOF, Parked: true}, "parked", func(n *Counters) uint64 { return n.Pending.Load() }},
		{&PendingError{Cause: io.EOF, Parked: true, Compensating: true}, "refused", func(n *Counters) uint64 { return n.Refused.Load() }},
		{&CompensatedError{Cause: io.EOF}, "refused", func(n *Counters) uint64 { return n.Refused.Load() }},
		{&RefusedError{Cause: io.EOF}, "parked", func(n *Counters) uint64 { return n.Refused.Load() }},
		{&RowsError{Want: 1}, "refused", func(n *Counters) uint64 { return n.Refused.Load() }},
		{&NotLoggedError{Cause: io.EOF}, "not_logged", func(n *Counters) uint64 { return n.NotLogged.Load() }},
		{dialect.ErrVoided, "not_accepted", func(n *Counters) uint64 { return n.NotLogged.Load() }},
		{&UnknownOutcomeError{Log: txlog.ErrInDoubt}, "unknown", func(n *Counters) uint64 { return n.UnknownOutcome.Load() }},
		{errors.New("bed: nobody has said what this means"), "unknown", func(n *Counters) uint64 { return n.UnknownOutcome.Load() }},
	} {
		var n Counters
		if n.failed(c.err); c.count(&n) != 1 {
			t.Errorf("%v is counted as another outcome", c.err)
		}
		if got := (listener.Event{Err: c.err}).Outcome(); got != c.event {
			t.Errorf("%v: the event says %s, want %s", c.err, got, c.event)
		}
	}
}
