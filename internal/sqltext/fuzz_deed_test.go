package sqltext

import (
	"strings"
	"testing"
)

// tries bounds how often the test's own statements are repeated: a busy server may cut them, too.
const tries = 20

// deed is a server's treatment of a text: a second opinion on the class.
type deed struct {
	rows, defined bool // other rows, other definitions
	several       bool // it answered to more than one statement
	begun         bool // a transaction is open that was not
	committed     bool // the transaction that was open
	lost          bool // that transaction is gone, and not committed
	session       bool // the session is not what it was
}

// against returns the deed's contradiction to a class, if any. Opaque texts may do anything. So may
// several statements, except for the promises of their class.
func (d deed) against(c Class) string {
	control := c.Kind == Control || c.Kind == Multi && c.Pins
	switch kind := c.Kind; {
	case kind == Opaque:
	case d.several && kind != Multi:
		return "took it for several statements"
	case kind == Session && c.Pins && !d.committed: // a table of the session's own may hide another
	case d.rows && kind != DML && kind != DDL && kind != Multi:
		return "changed rows"
	case d.defined && kind != DDL && kind != Multi:
		return "changed definitions"
	case d.begun && kind != Rollback && !control:
		return "began a transaction"
	case d.committed && !c.ImplicitCommit && !control:
		return "committed the transaction"
	case d.lost && kind != Rollback && !control:
		return "rolled the transaction back"
	case d.session && (kind == Read || kind == DML || kind == DDL || kind == Empty) && !c.Pins && !c.NeedsSession:
		return "changed the session"
	}
	return ""
}

// addTexts adds all cases of a flavor to the corpus.
func addTexts(f *testing.F, flavor Flavor) {
	f.Helper()
	for i, fl := range flavors {
		if fl.flavor == flavor {
			for _, text := range texts(f, i) {
				f.Add(text)
			}
		}
	}
}

// reaches reports whether restoring the database would not undo a text: a prepared two-phase
// transaction outlives its session and keeps its locks.
func reaches(text string) bool {
	upper := strings.ToUpper(text)
	return len(text) > 2000 || strings.Contains(upper, "PREPARE") && (strings.Contains(upper, "XA") || strings.Contains(upper, "TRANSACTION"))
}
