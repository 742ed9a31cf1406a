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
	b.ColumnTypes.read(rows)
	var closed error
	b.rows, closed, b.err = readAll(rows)
	switch {
	case b.err != nil && (d.Undecoded == nil || !d.Undecoded(b.err)):
		return nil, b.err
	case closed != nil:
		return nil, closed // what happened to the statement
	}
	return b, nil
}

// Rows are the rows of a write, read to the end, with the column types that
// the driver gave. They implement driver.Rows.
type Rows struct {
	ColumnTypes
	cols []string
	rows [][]driver.Value
	next int
	// err comes after the last of rows; nil for io.EOF.
	err error
}

// ColumnTypes answer what database/sql asks of the columns of rows. Where their driver
// lacks an interface, they answer what it would assume.
type ColumnTypes struct {
	// Of are the rows whose driver is asked; nil once it was.
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

// Again gives the same rows from the beginning.
func (b *Rows) Again() *Rows {
	return &Rows{ColumnTypes: b.ColumnTypes, cols: b.cols, rows: b.rows, err: b.err}
}
