package dberr

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

type sqliteError int

func (e sqliteError) Error() string { return "database is locked" }
func (e sqliteError) Code() int     { return int(e) }

func TestDriverCodeIsFoundInWrappedErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err       error
		want      Code
		text      string
		contended bool
	}{
		{errors.New("connection reset"), Code{}, "", false},
		{nil, Code{}, "", false},
		{&mysql.MySQLError{Number: 1213, SQLState: [5]byte{'4', '0', '0', '0', '1'}}, Code{"40001", 1213}, "server error 1213 (SQLSTATE 40001)", true},
		{&mysql.MySQLError{Number: 1205, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}}, Code{"HY000", 1205}, "server error 1205 (SQLSTATE HY000)", true},
		{&mysql.MySQLError{Number: 1040}, Code{"", 1040}, "server error 1040", false},
		{&mysql.MySQLError{Number: 1029}, Code{"", 1029}, "server error 1029", false}, // its low byte is SQLite's 5
		{&pgconn.PgError{Code: "55P03"}, Code{"55P03", 0}, "SQLSTATE 55P03", true},
		{&pgconn.PgError{Code: "23505"}, Code{"23505", 0}, "SQLSTATE 23505", false},
		{sqliteError(517), Code{"", 517}, "server error 517", true},
		{sqliteError(19), Code{"", 19}, "server error 19", false},
	} {
		for _, err := range []error{c.err, fmt.Errorf("writing: %w", c.err), errors.Join(errors.New("first"), c.err)} {
			got := Of(err)
			if got != c.want || got.String() != c.text || got.Contended() != c.contended || got.Known() != (c.want != Code{}) {
				t.Errorf("%v: got %+v, %q, contended %v", err, got, got, got.Contended())
			}
		}
	}
}

func TestAMissingRightIsToldByItsCode(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		&mysql.MySQLError{Number: 1142, SQLState: [5]byte{'4', '2', '0', '0', '0'}}: true,
		&mysql.MySQLError{Number: 1044, SQLState: [5]byte{'4', '2', '0', '0', '0'}}: true,
		&mysql.MySQLError{Number: 1064, SQLState: [5]byte{'4', '2', '0', '0', '0'}}: false, // a syntax error
		&pgconn.PgError{Code: "42501"}:                                              true,
		&pgconn.PgError{Code: "42601"}:                                              false,
		sqliteError(8):                                                              false,
	} {
		if got := Of(err).Denied(); got != want {
			t.Errorf("%v: denied %v, want %v", err, got, want)
		}
	}
}

func TestARefusedLoginIsToldByItsCode(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		&mysql.MySQLError{Number: 1045, SQLState: [5]byte{'2', '8', '0', '0', '0'}}: true,
		&mysql.MySQLError{Number: 1862, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}}: true,
		&mysql.MySQLError{Number: 4151, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}}: true,
		&mysql.MySQLError{Number: 1049, SQLState: [5]byte{'4', '2', '0', '0', '0'}}: false, // an unknown database
		&pgconn.PgError{Code: "28P01"}:                                              true,
		&pgconn.PgError{Code: "28000"}:                                              true,
		&pgconn.PgError{Code: "3D000"}:                                              false,
		sqliteError(8):                                                              false,
	} {
		if got := Of(fmt.Errorf("dialling: %w", err)).NotAdmitted(); got != want {
			t.Errorf("%v: not admitted %v, want %v", err, got, want)
		}
	}
}
