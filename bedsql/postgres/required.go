package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/jackc/pgx/v5/pgconn"
)

// rowsStop begins the text that is not a number, by which a call that did not change as
// many rows as it must fails on the server. How many it changed follows.
const rowsStop = "bed_rows: "

// counting gives calls as they are sent: one that must change a number of rows is a query
// for how many it changed, and an error if they are others. false if one of them may mean
// something else as a part of a query.
func counting(calls []delivery.Call, q sqltext.Quoting) ([]delivery.Call, bool) {
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

// part gives a write as it stands in a WITH, with a RETURNING; false if it cannot, or if
// that is not sure. One that begins with WITH itself cannot.
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

// rowsError is the error that a call's own text failed with, if it did not change as many
// rows as it must; else err.
func rowsError(c delivery.Call, err error) error {
	var server *pgconn.PgError
	if !c.Required.Given() || !errors.As(err, &server) || server.Code != "22P02" || server.Where != "" {
		return err
	}
	var got int64
	if _, text, ours := strings.Cut(server.Message, rowsStop); !ours {
		return err
	} else if n, _ := fmt.Sscanf(text, "%d", &got); n != 1 || c.Required.Met(got) {
		return err
	}
	return delivery.Unmet(c.Required, got)
}

// isUnfit reports whether err may be of a text as a part of a query, and not of itself: a
// rule on the table, or a position in the text.
func isUnfit(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (strings.HasPrefix(server.Code, "42") || strings.HasPrefix(server.Code, "0A"))
}
