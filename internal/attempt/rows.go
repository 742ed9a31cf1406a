package attempt

import (
	"database/sql/driver"
	"io"
	"reflect"

	"github.com/bedsql/bed/listener/delivery"
)

// BufferWrite reads the rows of a write to their end and closes them. Only then
// is it done: a later row, a deferred constraint or the implicit commit may still
// fail, and that error is returned. A write that the server carried out and whose
// rows the driver cannot decode is done: their error comes after the rows before
// it, as from the driver.
func BufferWrite(d *delivery.Dialect, rows driver.Rows) (*Rows, error) {
	b := &Rows{cols: rows.Columns()}
	b.readTypes(rows)
	var closed error
	b.rows, closed, b.err = readAll(rows)
	switch {
	case b.err != nil && (d.Undecoded == nil || !d.Undecoded(b.err)):
		return nil, b.err
	case closed != nil:
		return nil, closed // what became of the statement
	}
	return b, nil
}

// Rows are the rows of a write, read to the end, with the column types that
// the driver gave. They implement driver.Rows.
type Rows struct {
	cols  []string
	types []columnType
	rows  [][]driver.Value
	next  int
	// err comes after the last of rows; nil for io.EOF.
	err error
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

func (b *Rows) readTypes(rows driver.Rows) {
	b.types = make([]columnType, len(b.cols))
	if s, ok := rows.(*stmtRows); ok {
		rows = s.Rows
	}
	for i := range b.types {
		t := &b.types[i]
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

// Columns implements driver.Rows.
func (b *Rows) Columns() []string { return b.cols }

// Close implements driver.Rows.
func (b *Rows) Close() error {
	b.rows, b.err = nil, nil
	return nil
}

// Next implements driver.Rows.
func (b *Rows) Next(dest []driver.Value) error {
	if b.next >= len(b.rows) {
		if b.err != nil {
			return b.err
		}
		return io.EOF
	}
	copy(dest, b.rows[b.next])
	b.next++
	return nil
}

// ColumnTypeScanType implements driver.RowsColumnTypeScanType.
func (b *Rows) ColumnTypeScanType(i int) reflect.Type { return b.types[i].scan }

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (b *Rows) ColumnTypeDatabaseTypeName(i int) string { return b.types[i].name }

// ColumnTypeLength implements driver.RowsColumnTypeLength.
func (b *Rows) ColumnTypeLength(i int) (int64, bool) {
	return b.types[i].length, b.types[i].hasLength
}

// ColumnTypeNullable implements driver.RowsColumnTypeNullable.
func (b *Rows) ColumnTypeNullable(i int) (nullable, ok bool) {
	return b.types[i].nullable, b.types[i].hasNull
}

// ColumnTypePrecisionScale implements driver.RowsColumnTypePrecisionScale.
func (b *Rows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return b.types[i].precision, b.types[i].scale, b.types[i].hasDecimal
}

// Again gives the same rows from the beginning.
func (b *Rows) Again() *Rows { return &Rows{cols: b.cols, types: b.types, rows: b.rows, err: b.err} }
