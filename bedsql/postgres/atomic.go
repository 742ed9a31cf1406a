package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The limits of one pipeline.
const (
	maxPipelineCalls = 1000
	maxPipelineText  = 4 << 20
)

// idle implements Dialect.Idle: each answer ends with the state of the session.
func idle(conn driver.Conn) bool {
	std := stdlibConn(conn)
	return std != nil && sessionOf(std.Conn()).idle()
}

// interrupt implements Dialect.Interrupt as pgx's own contexts do.
func interrupt(conn driver.Conn) {
	if std := stdlibConn(conn); std != nil {
		_ = std.Conn().PgConn().Conn().SetDeadline(time.Unix(1, 0))
	}
}

// atomic implements Dialect.Atomic: the server takes everything up to one Sync for one
// transaction, and one failure skips the rest of it. It drops the rows of a RETURNING. pgx's
// tracers do not see the calls. It does not handle calls with a required number of rows if
// counting them on the way is impossible.
func atomic(ctx context.Context, conn driver.Conn, calls []dialect.Call) ([]driver.Result, bool, error) {
	s, sent, ok := openSession(conn, calls)
	if !ok || len(calls) == 0 {
		return nil, false, nil
	}
	if s.conn.IsClosed() {
		return nil, true, notSent(driver.ErrBadConn)
	}
	if !s.idle() {
		return nil, false, nil
	}
	tags, failed, err := s.run(ctx, sent)
	if hasCode(err, "26000", "42P05") && !s.unnamed && s.idle() {
		// A pooler changed the server's session: the name is unknown there, or taken. Nothing was
		// applied. From now on there are no names; named statements are left to that session.
		s.unnamed, s.stale = true, nil
		clear(s.statements)
		tags, failed, err = s.run(ctx, sent)
	}
	if err != nil && &sent[0] != &calls[0] && isUnfit(err) && s.idle() {
		return nil, false, nil // nothing was applied
	}
	if err != nil {
		return nil, true, receiptError(calls, failed, err)
	}
	results := make([]driver.Result, len(calls))
	for i, tag := range tags {
		results[i] = driver.RowsAffected(tag.RowsAffected())
	}
	return results, true, nil
}

// commitWith implements Dialect.CommitWith.
func commitWith(ctx context.Context, conn driver.Conn, calls []dialect.Call) (bool, error) {
	s, sent, ok := openSession(conn, calls)
	if !ok {
		return false, nil
	}
	if s.conn.IsClosed() {
		return true, notSent(driver.ErrBadConn)
	}
	if s.idle() {
		// The transaction is gone: the calls would be committed without its earlier statements.
		return true, attempt.Certain(pgx.ErrTxClosed, dialect.Refused)
	}
	all := make([]dialect.Call, 0, len(sent)+1)
	all = append(append(all, sent...), dialect.Call{SQL: "commit"})
	tags, failed, err := s.run(ctx, all)
	if err != nil {
		class, sure := dialect.CertainClass(err)
		if open := sure && class == dialect.Unknown; !open && failed < len(calls) && calls[max(failed, 0)].Entries != "" {
			return true, &dialect.EntriesError{Err: err}
		}
		return true, receiptError(all, failed, err)
	}
	if tags[len(calls)].String() == "ROLLBACK" {
		return true, pgx.ErrTxCommitRollback
	}
	return true, nil
}

// openSession finds pgx's connection. It returns false for another driver, or if
// database/sql and a pipeline would treat the calls differently. sent are the calls as they
// are sent.
func openSession(conn driver.Conn, calls []dialect.Call) (s *session, sent []dialect.Call, ok bool) {
	std := stdlibConn(conn)
	if std == nil || len(calls) > maxPipelineCalls {
		return nil, nil, false
	}
	s = sessionOf(std.Conn())
	if s.mode == pgx.QueryExecModeSimpleProtocol {
		return nil, nil, false // it has no pipelines
	}
	s.unnamed = s.unnamed || isPooled(conn)
	if s.capacity <= 0 && (s.mode == pgx.QueryExecModeCacheStatement || s.mode == pgx.QueryExecModeCacheDescribe) {
		return nil, nil, false // pgx refuses to run anything with arguments
	}
	size := 0
	for _, call := range calls {
		if size += len(call.SQL); size > maxPipelineText || special(call.Args) {
			return nil, nil, false
		}
		if call.Prepared && len(call.Args) > 0 && s.mode == pgx.QueryExecModeExec {
			return nil, nil, false // it guesses the types that a prepared statement asks the server for
		}
	}
	sent, ok = counting(calls, quoting(conn))
	return s, sent, ok
}

// special reports whether the first argument is one of pgx's options.
func special(args []driver.NamedValue) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0].Value.(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
		return true
	}
	return false
}

// quoting implements Dialect.Quoting: the server reports each change.
func quoting(conn driver.Conn) sqltext.Quoting {
	if std := stdlibConn(conn); std != nil && std.Conn().PgConn().ParameterStatus("standard_conforming_strings") == "off" {
		return sqltext.BackslashEscapes
	}
	return 0
}

// run sends calls as one pipeline and reads all answers. failed is the index of the call
// whose answer is err, -1 before anything was sent, or else the number of calls.
func (s *session) run(ctx context.Context, calls []dialect.Call) (tags []pgconn.CommandTag, failed int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, len(calls), notSent(err)
	}
	queries, err := s.encode(ctx, calls)
	if err != nil {
		s.forget(calls, err)
		return nil, -1, notSent(err)
	}
	p := s.conn.PgConn().StartPipeline(ctx)
	if err := p.Flush(); err != nil {
		return nil, len(calls), notSent(err) // it did not even start
	}
	for _, q := range queries {
		q.send(p)
	}
	tags, failed, err = s.read(p, calls)
	if cerr := p.Close(); err == nil && cerr != nil {
		err, failed = cerr, len(calls)
	}
	if err != nil && failed < len(calls) {
		if unmet := rowsError(calls[failed], err); unmet != err { //nolint:errorlint // it is another one
			return nil, failed, unmet
		}
	}
	if err != nil {
		s.forget(calls, err)
		return nil, failed, answered(err, failed == len(calls))
	}
	return tags, 0, nil
}

// read reads the answers to calls and to the Sync after them. Only the latter proves the
// commit.
func (s *session) read(p *pgconn.Pipeline, calls []dialect.Call) (tags []pgconn.CommandTag, failed int, err error) {
	n := len(calls)
	if err := p.Sync(); err != nil {
		return nil, n, err
	}
	tags = make([]pgconn.CommandTag, n)
	for i := range tags {
		got, err := p.GetResults()
		if err != nil {
			return nil, i, err
		}
		rows, ok := got.(*pgconn.ResultReader)
		if !ok {
			return nil, i, errUnexpected
		}
		counted := ""
		if calls[i].Required.Given() && rows.NextRow() {
			counted = string(rows.Values()[0])
		}
		if tags[i], err = rows.Close(); err != nil {
			return nil, i, err
		}
		if calls[i].Required.Given() {
			tags[i] = pgconn.NewCommandTag("UPDATE " + counted)
		}
	}
	got, err := p.GetResults()
	if err != nil {
		return nil, n, err
	}
	if _, ok := got.(*pgconn.PipelineSync); !ok {
		return nil, n, errUnexpected
	}
	return tags, 0, nil
}

var errUnexpected = errors.New("bed: the server's answers to a pipeline are out of order")

// answered marks an error after sending as one of unknown outcome, unless it is the server's
// answer. pgx would call some of them safe to retry. atEnd means that all calls were answered: the
// session may then have ended before the commit or after it.
func answered(err error, atEnd bool) error {
	if server := serverError(err); server != nil && (!atEnd || !endsSession(server)) {
		return err
	}
	return attempt.Certain(err, dialect.Unknown)
}

// notSent marks err as met before the write was sent, unless it is an answer.
func notSent(err error) error { return attempt.NotSent(err, classify(err)) }
