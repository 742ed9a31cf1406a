package ops

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// ErrNotAmendable says why an entry cannot be amended, or not to this text, and what to do instead.
var ErrNotAmendable = errors.New("ops: the entry cannot be amended")

// Amendment is the replacement for one statement of an entry.
type Amendment struct {
	// Statement is the number of the statement in the entry, from 1; 0 means the only one.
	Statement int
	// SQL is the new text, one DML statement; empty keeps the old one.
	SQL string
	// Parameters are the new ones, see [ReadParameters]; empty keeps the old ones.
	Parameters string
}

// Amended is an amended entry. It is still parked.
type Amended struct {
	ID        string `json:"id"`
	Statement int    `json:"statement"`
	// Unprepared says why the target could not check the new text; empty if the target accepted it.
	Unprepared string `json:"unprepared"`
}

// Amend replaces the text or the parameters of one statement of a parked entry, and audits both
// texts in the same local transaction. The entry must be surely unapplied, and stays parked. Amend
// first asks the target, if reachable, whether it accepts the new text. An entry in doubt is
// amended only if its receipt ends the doubt; it then gets another receipt. txlog.ErrNotFound,
// ErrInvalid, ErrNoTarget, ErrNotAmendable.
func (s *Store) Amend(ctx context.Context, id string, a Amendment, by By) (*Amended, error) {
	if err := by.Check(Amend); err != nil {
		return nil, err
	}
	var u *entry.Unit
	if err := s.answer(ctx, func(ctx context.Context) (err error) { u, err = s.log.Get(ctx, id); return err }); err != nil {
		return nil, err
	}
	if err := amendable(u); err != nil {
		return nil, err
	}
	to, err := a.of(u)
	if err != nil {
		return nil, err
	}
	target, err := s.cfg.target(u)
	if err != nil {
		return nil, err
	}
	if err := deliverable(ctx, target, to.To); err != nil {
		return nil, err
	}
	if err := takesPlace(target.Dialect, u.Statements[to.No], &to.To); err != nil {
		return nil, err
	}
	verdicts, err := s.verdicts(ctx, []*entry.Unit{u})
	if err != nil {
		return nil, err
	}
	verdict, err := verdicts[0].Verdict, verdicts[0].amendable(u)
	if err != nil {
		return nil, err
	}
	what, err := replacing(u, to)
	if err != nil {
		return nil, err
	}
	done := &Amended{ID: u.ID, Statement: to.No + 1}
	if done.Unprepared, err = s.fits(ctx, target, to.To); err != nil {
		return nil, err
	}
	if u.InDoubt || verdict == NeverApplied {
		if to.Receipt, err = s.supersede(ctx, target, u, verdict); err != nil {
			return nil, err
		}
	}
	r := by.record(Amend, what, 1)
	r.Whole = true
	also, err := s.audited(func(entry.Decided) (journal.Record, error) { return r, nil })
	if err != nil {
		return nil, err
	}
	return done, s.answer(ctx, func(ctx context.Context) error {
		_, err := s.sql.Amend(ctx, map[string]entry.Amendment{u.ID: to}, false, same(u), also)
		return err
	})
}

// takesPlace has a message or a call that takes the place of old keep what identifies it.
func takesPlace(d *dialect.Dialect, old entry.Statement, to *entry.Statement) error {
	if d.Amend == nil {
		return nil
	}
	was, _ := old.Args() // none of one that could never be sent
	args, err := to.Args()
	if err == nil {
		args, err = d.Amend(dialect.Call{SQL: old.SQL, Args: was}, dialect.Call{SQL: to.SQL, Args: args})
	}
	if err == nil {
		to.Params, err = entry.EncodeParams(args)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// same checks, under the lock, that a unit is still as it was in u and can be amended.
func same(u *entry.Unit) func(*entry.Unit) error {
	return func(now *entry.Unit) error {
		if now.Parked && now.InDoubt == u.InDoubt && now.Receipt == u.Receipt && slices.Equal(now.Statements, u.Statements) {
			return amendable(now)
		}
		return fmt.Errorf("%w: it was changed meanwhile: look at it again", ErrNotAmendable)
	}
}

// deliverable refuses a statement that a job would not deliver in place of the old one.
func deliverable(ctx context.Context, target delivery.Target, to entry.Statement) error {
	if c, _ := sqltext.AsWrite(target.Dialect.Flavor, to.SQL); c.NeedsSession || c.Pins || attempt.OnlyDML(ctx, target.Dialect, nil, []entry.Statement{to}) != nil {
		return fmt.Errorf("%w: the SQL must be one DML statement that does not depend on its session", ErrInvalid)
	}
	return nil
}

// amendable says why a unit cannot be amended, regardless of its receipt.
func amendable(u *entry.Unit) error {
	why := ""
	switch {
	case !u.Parked && u.Leased:
		return fmt.Errorf("%w: %s", txlog.ErrLeased, u.ID)
	case u.Group() || u.Undo != nil:
		why = "it belongs to a compensable group: compensate the group, or undo the rest by hand and discard the entry"
	case !u.Parked:
		why = "it is not parked: park it first"
	case u.Unreadable != nil:
		why = "it cannot be read whole: " + u.Unreadable.Error()
	case u.NotReplayable != "":
		why = "it must not be run again: " + u.NotReplayable
	case u.Fingerprint != "":
		why = "it was written under an idempotency key, and with another text a request that is sent again would not be the same: discard it, and have the application send a new request"
	case u.InDoubt && u.Receipt == "":
		why = "an earlier attempt may have been applied, and it leaves no receipt that would tell: look at the data, and discard it or retry it as it is"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNotAmendable, why)
}

// of returns the amendment that a asks for in u.
func (a Amendment) of(u *entry.Unit) (to entry.Amendment, err error) {
	n := len(u.Statements)
	switch {
	case a.Statement == 0 && n > 1:
		return to, fmt.Errorf("%w: the entry has %d statements: say which one, from 1", ErrInvalid, n)
	case a.Statement < 0 || a.Statement > n:
		return to, fmt.Errorf("%w: the statement is %d, but must be from 1 to %d", ErrInvalid, a.Statement, n)
	case strings.TrimSpace(a.SQL) == "" && strings.TrimSpace(a.Parameters) == "":
		return to, fmt.Errorf("%w: an amendment needs an SQL text or parameters", ErrInvalid)
	case !storable(a.SQL):
		return to, fmt.Errorf("%w: the SQL must be valid UTF-8 without NUL", ErrInvalid)
	}
	to.No = max(a.Statement, 1) - 1
	to.To = u.Statements[to.No]
	if strings.TrimSpace(a.SQL) != "" {
		to.To.SQL = a.SQL
	}
	if strings.TrimSpace(a.Parameters) != "" {
		to.To.Params, err = ReadParameters(a.Parameters)
	}
	return to, err
}

// verdicts looks up the receipts of units. The verdict is empty for a unit without one.
func (s *Store) verdicts(ctx context.Context, units []*entry.Unit) ([]Judgement, error) {
	judged, err := s.judge(ctx, units...)
	for i, u := range units[:len(judged)] {
		if u.Receipt == "" {
			judged[i] = Judgement{}
		}
	}
	return judged, s.fault(err)
}

// amendable refuses a unit that is applied, or may be, according to j.
func (j Judgement) amendable(u *entry.Unit) error {
	switch {
	case j.Verdict == Applied:
		return fmt.Errorf("%w: %s: %s", ErrNotAmendable, j.Short(), j.Advice(u))
	case u.InDoubt && j.Verdict != NotApplied && j.Verdict != NeverApplied:
		return fmt.Errorf("%w: an earlier attempt may have been applied (%s: %s): try again once its receipt can be asked for", ErrNotAmendable, j.Short(), errmask.Mask(j.Detail))
	}
	return nil
}

// fits has the target parse a statement. err means a refusal; unprepared explains why the target
// could not be asked.
func (s *Store) fits(ctx context.Context, target delivery.Target, statement entry.Statement) (unprepared string, err error) {
	args, err := statement.Args()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	l := &line{target: target, brief: true}
	defer l.close()
	err = l.prepare(ctx, statement.SQL, func(st driver.Stmt) error { return attempt.CheckCount(st, args) })
	if n := placeholders(target.Dialect.Flavor, statement.SQL); err == nil && n >= 0 && n != len(args) {
		return "", fmt.Errorf("%w: the text has %d placeholders, but there are %d parameters", ErrNotAmendable, n, len(args))
	}
	switch {
	case err == nil:
		return "", nil
	case target.Dialect.Class(err) == dialect.Refused:
		return "", &explained{"ops: the entry cannot be amended: its data source refuses the text: " + s.cfg.Clean(errmask.Mask(err.Error())), ErrNotAmendable}
	}
	return s.cfg.Clean(errmask.Mask(err.Error())), nil
}

// placeholders counts the placeholders of a text for SQLite, because its driver does not. It
// returns -1 for other databases, and for numbered or named placeholders.
func placeholders(f sqltext.Flavor, text string) (n int) {
	if f != sqltext.SQLite {
		return -1
	}
	end := -1
	for token := range sqltext.Tokens(f, 0, text) {
		switch {
		case strings.ContainsAny(token.Text[:1], ":$@"), token.Kind == sqltext.Word && token.Start == end:
			return -1
		case token.Kind == sqltext.Param:
			n, end = n+1, token.Start+len(token.Text)
		}
	}
	return n
}

// prepare has a target parse a text. It runs no statement and leaves no prepared one.
func (l *line) prepare(ctx context.Context, text string, check func(driver.Stmt) error) error {
	_, err := ask(ctx, l, func(ctx context.Context, conn driver.Conn) (any, error) {
		st, err := attempt.Prepare(ctx, conn, text)
		if err != nil {
			return nil, err
		}
		return nil, cmp.Or(check(st), st.Close())
	})
	return err
}

// supersede makes certain, by the receipt, that no earlier attempt at a unit was or ever will be
// applied. It returns the receipt for the amended unit.
func (s *Store) supersede(ctx context.Context, to delivery.Target, u *entry.Unit, verdict Verdict) (receipt string, err error) {
	r := attempt.Receipts{LogIdentity: s.log.Identity(), Retention: attempt.DefaultRetention, KeyRetention: attempt.DefaultRetention, Schema: to.ReceiptSchema}
	l := &line{target: to, brief: true}
	defer l.close()
	certain, err := ask(ctx, l, func(ctx context.Context, conn driver.Conn) (bool, error) {
		err := target.StillIn(ctx, &to, conn) // the verdict came from another connection
		if err == nil {
			err = target.SamePlace(ctx, &to, conn, u)
		}
		if err != nil {
			return false, err
		}
		return attempt.Supersede(ctx, to.Dialect, conn, u, r)
	})
	switch {
	case err != nil:
		return "", &explained{"ops: the entry cannot be amended: an earlier attempt may have been applied, or be on its way, and its receipt cannot tell now: try again: " +
			s.cfg.Clean(errmask.Mask(err.Error())), ErrNotAmendable}
	case !certain && verdict == NeverApplied:
		return "", fmt.Errorf("%w: %s", ErrNotAmendable, Judgement{Verdict: NeverApplied}.Short()+": "+Judgement{Verdict: NeverApplied}.Advice(u))
	case !certain:
		return "", fmt.Errorf("%w: an earlier attempt was applied, or decided, meanwhile: look at it again", ErrNotAmendable)
	}
	return attempt.ReceiptID(to.Dialect, entry.NewID()), nil
}

// Replaced is the audit record of an amendment.
type Replaced struct {
	Entry     string `json:"entry,omitempty"`
	Statement int    `json:"statement"`
	Old       Text   `json:"old"`
	New       Text   `json:"new"`
	// Bulk is set for a bulk amendment. Old.Parameters then lists the parameters of each entry in
	// the order of Bulk.IDs, or is null if they did not change.
	*Bulk
}

// Text is a statement in the audit.
type Text struct {
	SQL string `json:"sql"`
	// Parameters are in the log's own form; with values masked, an array of [Parameter].
	Parameters json.RawMessage `json:"parameters"`
}

func textOf(s entry.Statement) Text {
	t := Text{s.SQL, json.RawMessage(s.Params)}
	if s.Params == "" {
		t.Parameters = json.RawMessage(`[]`)
	}
	return t
}

// replacing encodes an amendment for the audit.
func replacing(u *entry.Unit, to entry.Amendment) (string, error) {
	old := u.Statements[to.No]
	if !storable(old.SQL) {
		return "", fmt.Errorf("%w: its SQL is not valid UTF-8 without NUL, which the audit could not keep: discard it, and do the work anew", ErrNotAmendable)
	}
	if _, err := old.Args(); err != nil {
		return "", fmt.Errorf("%w: its parameters cannot be read: %w", ErrNotAmendable, err)
	}
	return marshal(Replaced{Entry: u.ID, Statement: to.No + 1, Old: textOf(old), New: textOf(to.To)})
}

func marshal(v any) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// ReplacedBy decodes the amendment in a record; ok is false for other records.
func ReplacedBy(r Record) (re Replaced, ok bool) {
	return re, r.Action == Amend && json.Unmarshal([]byte(r.What), &re) == nil
}

func (re Replaced) masked() Replaced {
	re.New.Parameters = maskedParameters(re.New.Parameters)
	if re.Bulk == nil {
		re.Old.Parameters = maskedParameters(re.Old.Parameters)
		return re
	}
	if len(re.Old.Parameters) > 0 && string(re.Old.Parameters) != "null" {
		re.Old.Parameters = json.RawMessage(`"` + mask + `"`)
	}
	if re.Values {
		re.Text = mask
	}
	return re
}

// maskedParameters removes the values from parameters in the log's form.
func maskedParameters(all json.RawMessage) json.RawMessage {
	if len(all) == 0 || string(all) == "null" {
		return all
	}
	params, err := Parameters(entry.Statement{Params: string(all)}, false)
	if err != nil {
		return json.RawMessage(`"` + mask + `"`)
	}
	all, _ = json.Marshal(params)
	return all
}
