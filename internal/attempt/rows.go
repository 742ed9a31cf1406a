package attempt

import (
	"database/sql/driver"
	"fmt"
	"io"
	"reflect"

	"github.com/bedsql/bed/internal/dialect"
)

// maxBuffered bounds the rows held in memory, in bytes.
const maxBuffered = 64 << 20

// errCut is the error of rows beyond that bound.
var errCut = fmt.Errorf("bed: the write returns more than the %d MiB of rows that are held in memory until it is complete, the rest is dropped: have it return fewer rows or columns", maxBuffered>>20)

// BufferWrite reads the rows of a write to their end and closes them. Only then is the write done:
// a later row, a deferred constraint or the implicit commit may still fail, and BufferWrite
// returns that error. If the server carried out the write but the driver cannot decode a row, the
// write is done. The decoding error then follows the rows before it, as it does from the driver.
// So does the error of rows beyond maxBuffered.
func BufferWrite(d *dialect.Dialect, rows driver.Rows) (*Rows, error) {
	b, err := BufferBounded(d, rows)
	if err != nil || b.rest == nil {
		return b, err
	}
	dest := make([]driver.Value, len(b.cols))
	for err == nil {
		if err = rows.Next(dest); err == nil {
			b.dropped++
		}
	}
	b.rest = nil
	err = b.end(d, rows, err)
	if b.err == nil {
		b.err = errCut
	}
	return b, err
}

// BufferBounded is BufferWrite for rows that the caller may pass on early: rows beyond maxBuffered
// come from the driver.
func BufferBounded(d *dialect.Dialect, rows driver.Rows) (*Rows, error) {
	b := &Rows{cols: rows.Columns()}
	b.ColumnTypes.read(rows)
	var err error
	if b.rows, err = read(rows, maxBuffered); err == nil {
		b.rest = rows
		return b, nil
	}
	return b, b.end(d, rows, err)
}

// end closes rows that ended with err.
func (b *Rows) end(d *dialect.Dialect, rows driver.Rows, err error) error {
	closed := rows.Close()
	if err == io.EOF { //nolint:errorlint // a wrapped one is the end of a connection
		return closed
	}
	if d.Undecoded == nil || !d.Undecoded(err) {
		return err
	}
	b.err = err
	return closed // what happened to the statement
}

// Rows are the rows of a write, read to the end, with the column types from the driver. They
// implement driver.Rows.
type Rows struct {
	ColumnTypes
	cols []string
	rows [][]driver.Value
	next int
	// err comes after the last of rows; nil for io.EOF.
	err error
	// rest, if any, follows rows. dropped is the number of dropped rows.
	rest    driver.Rows
	dropped int
}

// Whole reports whether all rows are in memory.
func (b *Rows) Whole() bool { return b.rest == nil }

// IfCut replaces the error of rows that were cut off.
func (b *Rows) IfCut(replace func(error) error) *Rows {
	if b.dropped > 0 {
		b.err = replace(b.err)
	}
	return b
}

// ColumnTypes answer database/sql's questions about columns. If the driver lacks an interface,
// they answer with the default of database/sql.
type ColumnTypes struct {
	// Of are the rows from which to read the types; nil once they are read.
	Of    driver.Rows
	types []columnType
}

type columnType struct {
	scan              reflect.Type
	name              string
	length            int64
	hasLength         bool
	nullable, hasNull bool
	precision, scale  int64
	hasDecimal        bool
}

var anyType = reflect.TypeFor[any]()

func (c *ColumnTypes) read(rows driver.Rows) {
	c.types = make([]columnType, len(rows.Columns()))
	if s, ok := rows.(*stmtRows); ok {
		rows = s.Rows
	}
	for i := range c.types {
		t := &c.types[i]
		t.scan = anyType
		if r, ok := rows.(driver.RowsColumnTypeScanType); ok {
			t.scan = r.ColumnTypeScanType(i)
		}
		if r, ok := rows.(driver.RowsColumnTypeDatabaseTypeName); ok {
			t.name = r.ColumnTypeDatabaseTypeName(i)
		}
		if r, ok := rows.(driver.RowsColumnTypeLength); ok {
			t.length, t.hasLength = r.ColumnTypeLength(i)
		}
		if r, ok := rows.(driver.RowsColumnTypeNullable); ok {
			t.nullable, t.hasNull = r.ColumnTypeNullable(i)
		}
		if r, ok := rows.(driver.RowsColumnTypePrecisionScale); ok {
			t.precision, t.scale, t.hasDecimal = r.ColumnTypePrecisionScale(i)
		}
	}
}

func (c *ColumnTypes) at(i int) *columnType {
	if c.Of != nil {
		c.read(c.Of)
		c.Of = nil
	}
	return &c.types[i]
}

// ColumnTypeScanType implements driver.RowsColumnTypeScanType.
func (c *ColumnTypes) ColumnTypeScanType(i int) reflect.Type { return c.at(i).scan }

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (c *ColumnTypes) ColumnTypeDatabaseTypeName(i int) string { return c.at(i).name }

// ColumnTypeLength implements driver.RowsColumnTypeLength.
func (c *ColumnTypes) ColumnTypeLength(i int) (length int64, ok bool) {
	return c.at(i).length, c.at(i).hasLength
}

// ColumnTypeNullable implements driver.RowsColumnTypeNullable.
func (c *ColumnTypes) ColumnTypeNullable(i int) (nullable, ok bool) {
	return c.at(i).nullable, c.at(i).hasNull
}

// ColumnTypePrecisionScale implements driver.RowsColumnTypePrecisionScale.
func (c *ColumnTypes) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return c.at(i).precision, c.at(i).scale, c.at(i).hasDecimal
}

// Columns implements driver.Rows.
func (b *Rows) Columns() []string { return b.cols }

// Close implements driver.Rows.
func (b *Rows) Close() (err error) {
	if b.rest != nil {
		err = b.rest.Close()
	}
	b.rows, b.err, b.rest = nil, nil, nil
	return err
}

// Next implements driver.Rows.
func (b *Rows) Next(dest []driver.Value) error {
	if b.next >= len(b.rows) {
		switch {
		case b.err != nil:
			return b.err
		case b.rest != nil:
			return b.rest.Next(dest)
		}
		return io.EOF
	}
	copy(dest, b.rows[b.next])
	b.next++
	return nil
}

// Again returns the same rows from the beginning.
func (b *Rows) Again() *Rows {
	return &Rows{ColumnTypes: b.ColumnTypes, cols: b.cols, rows: b.rows, err: b.err, dropped: b.dropped}
}
