package simulation

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// This file runs compounds of several statements, supported by MariaDB only. An attempt, its
// receipt and its COMMIT are then one message, which may arrive late as a whole.

const (
	compoundStart = "BEGIN NOT ATOMIC"
	mariaDB       = "10.11.6-MariaDB"
)

var errNotSupported = serverError(1295, "HY000", "This command is not supported in the prepared statement protocol yet")

func (s *server) isMariaDB() bool { return s.version == mariaDB }

// compound runs bed's compounds: the receipt, writes and a COMMIT, with a handler that rolls back
// on an error. It returns the rows affected by each write.
func (s *session) compound(text string, args []any) (a *answer, err error) {
	if strings.Contains(text, "START TRANSACTION;") {
		s.commit()
		s.open = true
	} else if !s.open {
		return nil, serverError(1644, "25000", "bed: nothing was committed: the transaction is not open any more")
	}
	end := s.rollback
	if !strings.Contains(text, "DECLARE EXIT HANDLER FOR SQLEXCEPTION") {
		end = func() {} // the transaction stays as it is
	}
	parts := strings.Split(text, "\n;\n")
	var affected []any
	var ran []int64 // by each call, receipts included
	for i, part := range parts {
		if err := s.checked(part, ran); err != nil {
			end()
			return nil, err
		}
		if i == len(parts)-1 {
			break
		}
		receipt := max(strings.LastIndex(part, "INSERT INTO bed_receipt "), strings.LastIndex(part, "INSERT INTO `shop`.bed_receipt "))
		fence := strings.LastIndex(part, "INSERT INTO bed_order ")
		entries := strings.LastIndex(part, insertWithin)
		start := max(receipt, fence, entries)
		if start < 0 {
			start = max(strings.LastIndex(part, "UPDATE "), 0)
		}
		statement := part[start:]
		n := strings.Count(statement, "?")
		if entries >= 0 { // all of it is in the text
			n = 0
		}
		var one *answer
		if one, err = s.run(statement, args[:n]); err != nil {
			end()
			if e, ok := err.(*mysql.MySQLError); ok && receipt >= 0 && e.Number != 1062 {
				err = serverError(e.Number, string(e.SQLState[:]), "bed_receipt: waiting for another writer of this receipt failed; try again")
			}
			return nil, err
		}
		args, ran = args[n:], append(ran, one.affected)
		if receipt < 0 && fence < 0 {
			affected = append(affected, one.affected)
		}
	}
	s.commit()
	if len(affected) == 0 {
		affected = []any{int64(0)}
	}
	return &answer{columns: make([]string, len(affected)), rows: [][]any{affected}}, nil
}

var (
	aCheck = regexp.MustCompile(`^IF bed_rows_(\d+)_\w+ (<>|<) (\d+) THEN SET bed_message_\w+ = CONCAT\('(bed_rows: call \d+ )', bed_rows_\w+\);$`)
	// anEntryCheck is a check around the INSERT of entries.
	anEntryCheck = regexp.MustCompile(`^IF (?:NOT EXISTS \((.*)\)|ROW_COUNT\(\) <> (\d+)) THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '(bed_rows: call \d+ -?\d+)'; END IF;$`)
	// around matches the lines of a compound that are not writes and need no run.
	around = regexp.MustCompile(`^(BEGIN.*|DECLARE .*|START TRANSACTION;|IF @@in_transaction = 0 THEN .*|SET bed_rows_\w+ = ROW_COUNT\(\);|` +
		`SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = bed_message_\w+; END IF;|(INSERT INTO bed_receipt|INSERT INTO bed_order|INSERT INTO \x60shop\x60.(transaction_log|bed_receipt)|UPDATE) .*|END;?|COMMIT AND NO CHAIN NO RELEASE;|SELECT [\w, ]+;)?$`)
)

// checked runs the check of the last write's row count, before the next write.
func (s *session) checked(part string, ran []int64) *mysql.MySQLError {
	for line := range strings.Lines(part) {
		line = strings.TrimSuffix(line, "\n")
		if m := anEntryCheck.FindStringSubmatch(line); m != nil {
			query, rows := m[1], m[2]
			if query != "" && len(parse(s, query[len("SELECT "):], nil).selects().rows) == 0 || rows != "" && strconv.FormatInt(ran[len(ran)-1], 10) != rows {
				return serverError(1644, "45000", m[3])
			}
			continue
		}
		m := aCheck.FindStringSubmatch(line)
		if m == nil {
			if !around.MatchString(line) {
				panic("the simulated server cannot run, in a compound: " + line)
			}
			continue
		}
		i, _ := strconv.Atoi(m[1])
		n, _ := strconv.ParseInt(m[3], 10, 64)
		if ran[i] < n || m[2] == "<>" && ran[i] != n {
			return serverError(1644, "45000", m[4]+strconv.FormatInt(ran[i], 10))
		}
	}
	return nil
}
