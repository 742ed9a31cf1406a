package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
)

const jsonHelp = `
JSON (-o json): names and meanings are stable. An entry is an object with id,
transactionId, dataSource, state (waiting, leased or parked), createdAt, tries,
nextTry (when it is due, by the log's clock; null for a parked one and for one that
waits for another; for a leased one the end of its lease), waitsFor (the entry before it
under its order key, if there is one), blocks (how many wait behind it), lastError, contendedSince (when other transactions were
first in its way; else left out),
inDoubt (an earlier attempt may have been applied), notReplayable (why it must not
be run again, or empty), unreadable (why its row cannot be read whole, or empty),
settings, session (what else decided what its writer's session means, when known), group (its role in a compensable group: part, recorded, compensating or
halfCompensated; else left out), cause (why the group is compensated), and statements, each with
its sql, its requiredRows (=1 or >=1) if it must change a number of rows, and compensates (the
data source whose part it compensates). Times are RFC 3339 in UTC.`

// unitView is a unit as JSON shows it: an entry with its error as it is. Its names are
// promised to users.
type unitView struct {
	ops.Entry
	Settings     string          `json:"settings"`
	Session      string          `json:"session,omitempty"`
	ReceiptPlace string          `json:"receiptPlace,omitempty"`
	Statements   []ops.Statement `json:"statements"`
	// Verdict and its detail are there when targets were asked.
	Verdict       ops.Verdict `json:"verdict,omitempty"`
	VerdictDetail string      `json:"verdictDetail,omitempty"`
}

// viewOf makes the view of a unit; j is nil when no target was asked.
func viewOf(a *app, u *entry.Unit, j *ops.Judgement) unitView {
	e := ops.EntryOf(u, a.minAge)
	v := unitView{Entry: e, Settings: u.Settings, Session: ops.SessionOf(u, false), ReceiptPlace: u.Place, Statements: e.Statements}
	if j != nil {
		v.Verdict, v.VerdictDetail = j.Verdict, j.Detail
	}
	return v
}

// marshal returns JSON with all terminal control characters escaped; on one line without an indent.
func marshal(v any, prefix, indent string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, indent)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	var out strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			// Outside of strings JSON has no such character.
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String(), nil
}

func printJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

func writeJSON(w io.Writer, v any, indent string) error {
	text, err := marshal(v, "", indent)
	if err == nil {
		_, err = fmt.Fprintln(w, text)
	}
	return err
}

// output is the flag -o.
type output string

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "format" }
func (o *output) Set(s string) error {
	if s != "table" && s != "json" {
		return errors.New("it is table or json")
	}
	*o = output(s)
	return nil
}
