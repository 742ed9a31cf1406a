package target

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
)

// NotSent begins each error of this package.
const NotSent = "bed: not sent: "

// ElsewhereError reports that nothing was sent: in this session the unit could mean other values, reach
// another place or miss its receipt. Only an operator can help.
type ElsewhereError struct {
	// Kind names what differs: "session", "settings", "place" or "schema".
	Kind string
	// Why is the reason, Remedy the operator's next step.
	Why, Remedy string
	// Err is the database's error behind it; may be nil.
	Err error
}

func (e *ElsewhereError) Error() string { return NotSent + e.Why + "; " + e.Remedy }

// Unwrap returns the database's error.
func (e *ElsewhereError) Unwrap() error { return e.Err }

// Certainly returns Retryable: the write was not sent, and may be later.
func (*ElsewhereError) Certainly() dialect.Class { return dialect.Retryable }

// OtherSession returns the ElsewhereError of a unit written in the session entry, by a connection whose
// session is has. Both are Facts.Session. err is the reason why adapting the session failed; may be
// nil.
func OtherSession(entry, has string, err error) *ElsewhereError {
	of, with := strings.Split(entry, ";"), strings.Split(has, ";")
	only := func(of, other []string) string {
		of = slices.DeleteFunc(slices.Clone(of), func(s string) bool { return slices.Contains(other, s) })
		return cmp.Or(Masked(strings.Join(of, ";")), "nothing else")
	}
	e := &ElsewhereError{Kind: "session", Err: err, Remedy: "give this account the rights or the settings of the application's"}
	e.Why = fmt.Sprintf("the entry was written in a session that has %s, but this session has %s", only(of, with), only(with, of))
	if err != nil {
		e.Why += ": " + err.Error()
	}
	return e
}

// Masked returns the settings of a session without the values of the application's own, which may be
// a secret or name a person.
func Masked(session string) string {
	list := strings.Split(session, ";")
	for i, s := range list {
		if name, _, _ := strings.Cut(s, "="); strings.ContainsAny(name, ".@") {
			list[i] = name + "=(not shown)"
		}
	}
	return strings.Join(list, ";")
}

func otherSettings(t *delivery.Target, settings string, err error) *ElsewhereError {
	return &ElsewhereError{
		Kind: "settings",
		Why: fmt.Sprintf("the entry was written with the settings %q, which the DSN of data source %s cannot have (it has %q): %v",
			settings, t.DataSource, t.Settings, err),
		Remedy: "give the job's DSN the parameters of the application's", Err: err,
	}
}

func otherAccount(t *delivery.Target, u *entry.Unit) *ElsewhereError {
	return &ElsewhereError{
		Kind: "session",
		Why: fmt.Sprintf("before its application had reached the database, the account %q wrote the entry; the session of %q may lead elsewhere",
			u.Account, t.Account),
		Remedy: "deliver it once by a job whose DSN has that account",
	}
}

// OtherPlace returns the ElsewhereError of a unit with its receipt in place. found is the session's
// place, or empty.
func OtherPlace(place, found string) *ElsewhereError {
	return &ElsewhereError{
		Kind:   "place",
		Why:    fmt.Sprintf("its receipt is in the table bed_receipt in %s, but this DSN and account lead to %s", place, cmp.Or(found, "none")),
		Remedy: "give each database a name of its own (bedDataSource), and the job a DSN and an account that lead to the application's",
	}
}

func notUndoable(err error) *ElsewhereError {
	return &ElsewhereError{
		Kind: "scope", Why: "the service does not say that its calls can be undone: " + err.Error(), Err: err,
		Remedy: "look at the base URL and the credentials; have it serve bedhttp.Scope below that URL, and allow this account to undo (bedhttp's Config.Undo)",
	}
}

func otherScope() *ElsewhereError {
	return &ElsewhereError{
		Kind: "scope", Why: "the service has other keys than when the call was logged: another database, region or account answers",
		Remedy: "give the job a base URL and credentials that lead to the application's",
	}
}

func otherSchema(dataSource, has, far string) *ElsewhereError {
	so := attempt.SchemaParam + " is not set"
	if has != "" {
		so = attempt.SchemaParam + " is " + has
	}
	return &ElsewhereError{
		Kind:   "schema",
		Why:    fmt.Sprintf("%s, but data source %s has kept its receipts in %s so far, which would not be met there", so, dataSource, far),
		Remedy: "go back to that, or move them as docs/exactly-once.md says (Changing the schema)",
	}
}

// LogError reports that nothing was sent, because the log failed before.
type LogError struct {
	failed  string
	writing bool
	Err     error
}

func (e *LogError) Error() string { return NotSent + e.failed + ": " + e.Err.Error() }

// Unwrap returns the log's error.
func (e *LogError) Unwrap() error { return e.Err }

// Certainly returns Retryable after a failed read, and Unreachable after a failed write.
func (e *LogError) Certainly() dialect.Class {
	if e.writing {
		return dialect.Unreachable
	}
	return dialect.Retryable
}

func unwritten(what string, err error) error {
	return &LogError{"could not record in the log " + what, true, err}
}
