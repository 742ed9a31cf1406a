package service

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/httpkey"
	"github.com/bedsql/bed/internal/sender"
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
	_ = res.Body.Close()
	scope := res.Header.Get(httpkey.Scope)
	switch {
	case res.StatusCode == http.StatusOK && scope != "" && res.Header.Get(httpkey.MayUndo) == httpkey.Yes:
		return scope, nil
	case res.StatusCode == http.StatusOK && scope != "":
		return "", sender.Misled(fmt.Errorf("%s answers that it lets nobody of this account undo", ScopePath))
	case res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests:
		return "", sender.Misled(fmt.Errorf("%s answers %s without a scope", ScopePath, res.Status))
	}
	return "", sender.NotTaken(fmt.Errorf("%s answers %s", ScopePath, res.Status))
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
	known := httpkey.No
	if part.Undo.Applied(part.ID) {
		known = httpkey.Yes
	}
	c.more = http.Header{
		httpkey.Undoes: {`"` + part.Receipt + `"`}, httpkey.Scope: {part.Place},
		httpkey.Sent: {part.CreatedAt.UTC().Truncate(time.Millisecond).Format(httpkey.SentFormat)}, httpkey.Applied: {known},
	}
	a, err := l.send(ctx, c)
	if err != nil {
		return false, err
	}
	switch a.Header.Get(httpkey.Undone) {
	case httpkey.Done:
		return false, nil
	case httpkey.Nothing, httpkey.Already:
		return true, nil
	}
	// The handler may have run unguarded.
	return false, &StatusError{
		Status: a.Status, Header: a.Header, Body: a.Body, class: dialect.Unknown, advice: dialect.Advice{Operator: true},
		why: "the answer has no " + httpkey.Undone + ", by which a service behind bedhttp shows what it has undone: something in between may have answered",
	}
}
