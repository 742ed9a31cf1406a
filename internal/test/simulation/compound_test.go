package simulation

import (
	"strings"

	"github.com/go-sql-driver/mysql"
)

// This file runs what only MariaDB has: several statements as one, so that an
// attempt, its receipt and its COMMIT are one message, which may come late as a
// whole.

const (
	compoundStart = "BEGIN NOT ATOMIC"
	mariaDB       = "10.11.6-MariaDB"
)

var errNotSupported = serverError(1295, "HY000", "This command is not supported in the prepared statement protocol yet")

func (s *server) isMariaDB() bool { return s.version == mariaDB }

// compound runs the compounds that bed makes: the receipt, writes and a COMMIT,
// with a handler that rolls back what fails. It answers the rows affected by each write.
func (s *session) compound(text string, args []any) (a *answer, err error) {
	if strings.Contains(text, "START TRANSACTION;") {
		s.commit()
		s.open = true
	} else if !s.open {
		return nil, serverError(1644, "25000", "bed: nothing was committed: the transaction is not open any more")
	}
	parts := strings.Split(text, "\n;\n")
	var affected []any
	for _, part := range parts[:len(parts)-1] {
		receipt := strings.LastIndex(part, "INSERT INTO bed_receipt ")
		statement := part[max(receipt, strings.LastIndex(part, "UPDATE "), 0):]
		n := strings.Count(statement, "?")
		var one *answer
		if one, err = s.run(statement, args[:n]); err != nil {
			s.rollback()
			if e, ok := err.(*mysql.MySQLError); ok && receipt >= 0 && e.Number != 1062 {
				err = serverError(e.Number, string(e.SQLState[:]), "bed_receipt: waiting for another writer of this receipt failed; try again")
			}
			return nil, err
		}
		args = args[n:]
		if receipt < 0 {
			affected = append(affected, one.affected)
		}
	}
	s.commit()
	if len(affected) == 0 {
		affected = []any{int64(0)}
	}
	return &answer{columns: make([]string, len(affected)), rows: [][]any{affected}}, nil
}
