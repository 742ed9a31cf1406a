package txlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// fields is how many columns unitColumns names.
const fields = 18

// record is a unit's first row as text, column by column, so that a value that
// cannot be read does not keep the others from being read.
type record [fields]sql.NullString

func (r *record) pointers() []any {
	p := make([]any, fields)
	for i := range r {
		p[i] = &r[i]
	}
	return p
}

// stored is a unit with what its first row says besides.
type stored struct {
	*Unit
	// rows is how many rows the unit has.
	rows int
	// now is the log's clock at the reading, in ms.
	now int64
}

// unit reads a record. Unreadable says what cannot be read.
func (r *record) unit() stored {
	u := &Unit{}
	var problem error
	note := func(column, why string) {
		if problem == nil {
			problem = fmt.Errorf("txlog: the column %s %s", column, why)
		}
	}
	text := func(i int, column string) string {
		if !r[i].Valid {
			note(column, "is NULL")
		}
		return r[i].String
	}
	number := func(i int, column string) int64 {
		n, err := strconv.ParseInt(text(i, column), 10, 64)
		if err != nil {
			note(column, "is no number")
		}
		return n
	}
	u.ID = text(0, "id")
	u.DataSource = text(1, "data_source")
	statement, err := decodeSQL(text(2, "sql"))
	if err != nil {
		note("sql", "cannot be decoded")
	}
	params := text(3, "parameters")
	u.CreatedAt = time.UnixMilli(number(4, "creation_time"))
	u.Tries = int(number(5, "async_delivery_try_times"))
	u.TransactionID = text(6, "transaction_id")
	rows := int(number(7, "statement_count"))
	if rows < 1 || rows > MaxStatements {
		note("statement_count", "is not between 1 and "+strconv.Itoa(MaxStatements))
		rows = 1
	}
	if err := u.decodeSettings(text(8, "settings")); err != nil {
		note("settings", err.Error())
	}
	u.NotReplayable = text(9, "not_replayable")
	u.Receipt = text(10, "receipt")
	u.Fingerprint = text(11, "fingerprint")
	u.InDoubt = number(12, "in_doubt") != 0
	next := number(13, "next_try_time")
	u.LastError = r[14].String
	u.Parked = number(15, "parked") != 0
	now, _ := strconv.ParseInt(r[17].String, 10, 64)
	u.Leased = r[16].Valid && next > now
	u.ReadAt = time.UnixMilli(now)
	if u.AtOnce = next == atOnce; u.AtOnce {
		next = now
	}
	u.NextTry = time.UnixMilli(next)
	u.Statements = make([]Statement, rows)
	u.Statements[0].SQL = statement
	u.Statements[0].decodeParams(params)
	u.Unreadable = problem
	return stored{Unit: u, rows: rows, now: now}
}

// units runs a query for first rows and reads what it gives.
func units(ctx context.Context, q runner, sh shape, args ...any) ([]stored, error) {
	rows, err := q.query(ctx, sh, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []stored
	for rows.Next() {
		var r record
		if err := rows.Scan(r.pointers()...); err != nil {
			return nil, err
		}
		all = append(all, r.unit())
	}
	return all, rows.Err()
}

// loadStatements reads the statements after the first one of each unit.
func loadStatements(ctx context.Context, q runner, all []stored) error {
	var ids []string
	owner := map[string]*Unit{}
	for _, u := range all {
		if u.rows == 1 {
			continue
		}
		owner[u.ID] = u.Unit
		for n := 1; n < u.rows; n++ {
			ids = append(ids, rowID(u.ID, n))
		}
	}
	found := map[*Unit]int{}
	err := chunks(ids, func(portion []any) error {
		rows, err := q.query(ctx, shape{kind: selectRows, rows: len(portion)}, portion...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			var text, params sql.NullString
			if err := rows.Scan(&id, &text, &params); err != nil {
				return err
			}
			u := owner[headID(id)]
			if u == nil {
				continue
			}
			found[u]++
			n, _ := strconv.ParseUint(id[idPrefix:], 16, 12)
			if err := fillStatement(&u.Statements[n], text, params); err != nil && u.Unreadable == nil {
				u.Unreadable = fmt.Errorf("txlog: statement %d of %d: %w", n+1, len(u.Statements), err)
			}
		}
		return rows.Err()
	})
	for _, u := range all {
		if missing := u.rows - 1 - found[u.Unit]; missing > 0 && u.Unreadable == nil {
			u.Unreadable = fmt.Errorf("txlog: %d of the unit's %d statements are missing", missing, u.rows)
		}
	}
	return err
}

func fillStatement(s *Statement, text, params sql.NullString) (err error) {
	s.decodeParams(params.String)
	if s.SQL, err = decodeSQL(text.String); err != nil {
		return errors.New("the column sql cannot be decoded")
	}
	switch {
	case !text.Valid:
		return errors.New("the column sql is NULL")
	case !params.Valid:
		return errors.New("the column parameters is NULL")
	}
	return nil
}
