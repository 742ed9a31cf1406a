package attempt

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// Answer is the answer to a request under an idempotency key. The receipt keeps it, so a resent
// request gets the same answer.
type Answer struct {
	Statements []AnswerStatement `json:"statements"`
	// Response is the answer to the request itself (bedhttp).
	Response json.RawMessage `json:"response,omitempty"`
	// Undoable means that all writes of the request are in its transaction or in Entries.
	Undoable bool `json:"undoable,omitempty"`
	// Entries are the ids of the entries that its transaction wrote into the log.
	Entries []string `json:"entries,omitempty"`
}

// AnswerStatement is the answer to one statement.
type AnswerStatement struct {
	Prints
	// RowsAffected and InsertID are nil if the driver does not report them.
	RowsAffected *int64 `json:"rowsAffected,omitempty"`
	InsertID     *int64 `json:"insertId,omitempty"`
	// Columns, Types and Values hold the rows of a statement that returned rows. Each row is
	// encoded as the log encodes parameters.
	Columns []string `json:"columns,omitempty"`
	Types   []string `json:"types,omitempty"`
	Values  []string `json:"values,omitempty"`
	// RowsError is the text of the error that ended the rows.
	RowsError string `json:"rowsError,omitempty"`
	// Error is the text of the error of a failed statement. The local transaction went on after
	// it.
	Error string `json:"error,omitempty"`

	unkept error
}

// Add appends the answer to a statement: its result, or its rows.
func (a *Answer) Add(p Prints, res driver.Result, rows *Rows) {
	s := AnswerStatement{Prints: p}
	if res != nil {
		s.RowsAffected, s.InsertID = known(res.RowsAffected()), known(res.LastInsertId())
	}
	if rows != nil {
		s.unkept = s.keep(rows)
	}
	a.Statements = append(a.Statements, s)
}

// Failure returns the error of a failed statement, or nil.
func (s *AnswerStatement) Failure() error {
	if s.Error == "" {
		return nil
	}
	return fmt.Errorf("bed: when the request was applied, this statement failed: %s", s.Error)
}

func known(n int64, err error) *int64 {
	if err != nil {
		return nil
	}
	return &n
}

func (s *AnswerStatement) keep(rows *Rows) error {
	s.Columns = rows.cols
	for i := range rows.types {
		s.Types = append(s.Types, rows.types[i].name)
	}
	for _, row := range rows.rows {
		text, err := entry.EncodeParams(Numbered(row))
		if err != nil {
			return fmt.Errorf("bed: the rows that it returns cannot be kept with the idempotency key: %w", err)
		}
		s.Values = append(s.Values, text)
	}
	if rows.err != nil {
		s.RowsError = rows.err.Error()
	}
	return nil
}

// Result returns the stored result.
func (s *AnswerStatement) Result() driver.Result { return answerResult{s} }

type answerResult struct{ s *AnswerStatement }

func (r answerResult) LastInsertId() (int64, error) { return given(r.s.InsertID) }

func (r answerResult) RowsAffected() (int64, error) { return given(r.s.RowsAffected) }

func given(n *int64) (int64, error) {
	if n == nil {
		return 0, fmt.Errorf("bed: the driver did not give it when the request was applied")
	}
	return *n, nil
}

// Rows returns the stored rows, or nil if there are no rows or they cannot be read.
func (s *AnswerStatement) Rows() *Rows {
	if s.Columns == nil {
		return nil
	}
	rows := &Rows{cols: s.Columns, ColumnTypes: ColumnTypes{types: make([]columnType, len(s.Columns))}}
	for i := range rows.types {
		rows.types[i].scan = anyType
		if i < len(s.Types) {
			rows.types[i].name = s.Types[i]
		}
	}
	for _, text := range s.Values {
		args, err := entry.DecodeParams(text)
		if err != nil || len(args) != len(s.Columns) {
			return nil
		}
		row := make([]driver.Value, len(args))
		for i := range args {
			row[i] = args[i].Value
		}
		rows.rows = append(rows.rows, row)
	}
	if s.RowsError != "" {
		rows.err = fmt.Errorf("bed: when the request was applied, its rows ended so: %s", s.RowsError)
	}
	return rows
}

// ReadAnswer reads a stored answer.
func ReadAnswer(text string) (*Answer, error) {
	a := new(Answer)
	if err := json.Unmarshal([]byte(text), a); err != nil {
		return nil, fmt.Errorf("bed: the answer kept with an idempotency key cannot be read: %w", err)
	}
	return a, nil
}

// StoreAnswer keeps the answer to u with its receipt, inside the open local transaction on conn.
func StoreAnswer(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts, a Answer) Outcome {
	for i := range a.Statements {
		if err := a.Statements[i].unkept; err != nil {
			return Outcome{Class: dialect.Refused, Err: err}
		}
	}
	text, err := json.Marshal(a)
	if err != nil {
		return Outcome{Class: dialect.Refused, Err: fmt.Errorf("bed: the answer cannot be kept with the idempotency key: %w", err)}
	}
	c := call(r.text(d.Flavor, setResult), storedFingerprint(u), string(text), u.Receipt)
	res, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err != nil {
		return Failed(d, err, before)
	}
	if n, err := res.RowsAffected(); err == nil && n == 0 {
		return Outcome{Class: dialect.Refused, Err: errors.New("bed: the receipt of the idempotency key, in which the answer is kept, is gone")}
	}
	return Outcome{}
}

// InsertReceipt inserts the receipt of u at the beginning of its local transaction. A second
// request under the same idempotency key waits here. Found and OnReceipt mean the same as for
// Apply; then, and after an error, the transaction is rolled back.
func InsertReceipt(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx, u *entry.Unit, r Receipts) (Outcome, *Found) {
	c := r.Insertion(d.Flavor, u, false)
	_, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err == nil {
		return Outcome{}, nil
	}
	out := rolledBack(ctx, d, conn, tx, Failed(d, err, before))
	switch {
	case !isReceipt(d, out, u):
		out.OnReceipt = out.Class.Later() && dberr.Of(err).Contended()
		return out, nil
	case out.ConnLost:
		// Only the receipt was sent: another connection may begin anew.
		return unread(driver.ErrBadConn, true), nil
	}
	found, err := ReadReceipt(ctx, d, conn, r, u.Receipt)
	switch {
	case err != nil:
		if Failed(d, err, true).ConnLost && ctx.Err() == nil {
			return unread(driver.ErrBadConn, true), nil
		}
		return Failed(d, err, true), nil
	case found == nil:
		return goneReceipt(), nil
	case found.Void:
		return Outcome{Class: dialect.Refused, Voided: true, Err: dialect.ErrVoided}, nil
	default:
		return Outcome{Found: true, Replayed: true}, found
	}
}
