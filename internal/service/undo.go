package service

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
)

// The headers by which a call undoes another one. docs/services.md tells the protocol.
const (
	undoes  = "Idempotency-Undoes"         // the key of the call to undo
	sent    = "Idempotency-Undoes-Sent"    // when it was logged: it was not sent earlier
	applied = "Idempotency-Undoes-Applied" // whether it is known to be applied
	undone  = "Idempotency-Undone"         // the answer: done, nothing or already

	sentFormat = "2006-01-02T15:04:05.000Z"
)

// ScopePath is the path, below the base URL, at which a service serves bedhttp.Scope.
const ScopePath = "/idempotency-scope"

var peer = &dialect.Peer{Scope: scopeOf, Within: within, Undo: undo}

type scopeKey struct{}

// within has the service turn a call away that reaches other keys than those of the scope: an undo would
// not find it there.
func within(ctx context.Context, scope string) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope)
}

var errNoLink = errors.New("bed: the call cannot be undone: the connection leads to no HTTP service")

// scopeOf asks the service for the scope of its receipts, and whether they can be undone.
func scopeOf(ctx context.Context, conn driver.Conn) (string, error) {
	l, ok := sender.LinkOf(conn).(link)
	if !ok {
		return "", errNoLink
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(l.Base.String(), "/")+ScopePath, nil)
	if err != nil {
		return "", err
	}
	res, err := l.Client.Do(r)
	if err != nil {
		return "", unsent(err, false)
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	scope := res.Header.Get(Scope)
	switch {
	case res.StatusCode == http.StatusOK && scope != "" && res.Header.Get("Idempotency-Undo") == "?1":
		return scope, nil
	case res.StatusCode == http.StatusOK && scope != "":
		return "", Misled(fmt.Errorf("%s answers that it lets nobody of this account undo", ScopePath))
	case res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests:
		return "", Misled(fmt.Errorf("%s answers %s without a scope", ScopePath, res.Status))
	}
	return "", sender.NotTaken(judge(true, &StatusError{Status: res.StatusCode, Header: res.Header, Body: body}))
}

// undo sends the call that undoes a part. The service decides in one local transaction whether there is
// anything to undo. A call without a compensation is not undone, and nothing is asked.
func undo(ctx context.Context, conn driver.Conn, part *entry.Unit) (nothing bool, err error) {
	l, ok := sender.LinkOf(conn).(link)
	switch {
	case !ok:
		return false, errNoLink
	case len(part.Statements) == 0:
		return false, nil
	case part.Place == "": // it was never sent, and is no longer in the log
		return true, nil
	case len(part.Statements) > 1:
		return false, sender.Refused(errors.New("bed: a call is undone by one call, and the entry holds several"))
	}
	args, err := part.Statements[0].Args()
	if err != nil {
		return false, sender.Refused(err)
	}
	c, err := read(part.Statements[0].SQL, args)
	if err != nil {
		return false, err
	}
	known := "?0"
	if part.Undo.Applied(part.ID) {
		known = "?1"
	}
	c.more = http.Header{
		undoes: {`"` + part.Receipt + `"`}, Scope: {part.Place}, sent: {part.CreatedAt.UTC().Truncate(time.Millisecond).Format(sentFormat)}, applied: {known},
	}
	a, err := l.send(ctx, c)
	if err != nil {
		return false, err
	}
	switch a.Header.Get(undone) {
	case "done":
		return false, nil
	case "nothing", "already":
		return true, nil
	}
	// The handler may have run unguarded.
	return false, &StatusError{
		Status: a.Status, Header: a.Header, Body: a.Body, class: dialect.Unknown, advice: dialect.Advice{Operator: true},
		why: "the answer has no " + undone + ", by which a service behind bedhttp shows what it has undone: something in between may have answered",
	}
}
