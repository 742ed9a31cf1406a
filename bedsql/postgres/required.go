package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
)

// rowsStop begins the non-numeric text that makes a call fail on the server if it misses its
// required number of changed rows. The actual number follows.
const rowsStop = "bed_rows: "

// counting returns the calls to send. A call with a required number of rows becomes a query
// for the number of changed rows, which fails on another number. false if a call could have
// another meaning as a part of a query.
func counting(calls []dialect.Call, q sqltext.Quoting) ([]dialect.Call, bool) {
	sent := calls
	for i, c := range calls {
		if !c.Required.Given() {
			continue
		}
		text, ok := part(c.SQL, q)
		if !ok {
			return nil, false
		}
		n, more := c.Required.Rows()
		met := map[bool]string{false: " = ", true: " >= "}[more] + strconv.FormatInt(n, 10)
		if &sent[0] == &calls[0] {
			sent = slices.Clone(calls)
		}
		sent[i].SQL = "WITH bed_write AS (" + text + ") SELECT CASE WHEN pg_catalog.count(*)" + met +
			" THEN pg_catalog.count(*) ELSE CAST(pg_catalog.concat('" + rowsStop + "', pg_catalog.count(*)) AS pg_catalog.int8) END FROM bed_write"
	}
	return sent, true
}

// part returns a write in the form for a WITH, with a RETURNING; false if that is impossible
// or uncertain, as for a write that itself begins with WITH.
func part(text string, q sqltext.Quoting) (string, bool) {
	end, depth, ended, returning := 0, 0, false, " RETURNING 1"
	for t := range sqltext.Tokens(sqltext.Postgres, q, text) {
		switch {
		case ended, t.Kind == sqltext.Broken, end == 0 && !t.Is("INSERT") && !t.Is("UPDATE") && !t.Is("DELETE"):
			return "", false
		case t.Kind == sqltext.Mark && t.Text == ";":
			ended = true
			continue
		case t.Kind == sqltext.Mark && t.Text == "(":
			depth++
		case t.Kind == sqltext.Mark && t.Text == ")":
			depth--
		case depth == 0 && t.Is("RETURNING"):
			returning = ""
		}
		if depth < 0 {
			return "", false
		}
		end = t.Start + len(t.Text)
	}
	return text[:end] + returning, depth == 0 && end > 0
}

// rowsError returns the RowsError of a call whose own text failed because of the number of
// changed rows; else err.
func rowsError(c dialect.Call, err error) error {
	server := serverError(err)
	if !c.Required.Given() || server == nil || server.Code != "22P02" || server.Where != "" {
		return err
	}
	var got int64
	if _, text, ours := strings.Cut(server.Message, rowsStop); !ours {
		return err
	} else if n, _ := fmt.Sscanf(text, "%d", &got); n != 1 || c.Required.Met(got) {
		return err
	}
	return dialect.Unmet(c.Required, got)
}

// isUnfit reports whether err may come from the use of a text as a part of a query: a rule
// on the table, or a position in the text.
func isUnfit(err error) bool {
	server := serverError(err)
	return server != nil && (strings.HasPrefix(server.Code, "42") || strings.HasPrefix(server.Code, "0A"))
}
