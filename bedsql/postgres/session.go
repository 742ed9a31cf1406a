package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/hex"
	"errors"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// session belongs to one connection of pgx. It holds the connection's mode, and the
// descriptions of statements that were sent in pipelines, because pgx's own cache is out of
// reach. Like the connection it is used by one goroutine at a time.
type session struct {
	conn *pgx.Conn
	mode pgx.QueryExecMode
	// capacity is the number of kept descriptions, the same as in pgx.
	capacity   int
	statements map[string]*pgconn.StatementDescription
	// unnamed disables preparing by name, because the server's session may change each time.
	unnamed bool
	// stale are prepared statements that still exist on the server but are no longer used.
	stale []string
	// resolved are its settings at its dial, if asked. adapted is set once adapt has changed them.
	resolved       string
	asked, adapted bool
}

const sessionKey = "github.com/bedsql/bed"

// nameOf names a prepared statement after its text: a statement prepared by another
// connection in the same session of the server is then the same.
func nameOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "bed_" + hex.EncodeToString(sum[:16])
}

func sessionOf(conn *pgx.Conn) *session {
	data := conn.PgConn().CustomData()
	if s, ok := data[sessionKey].(*session); ok && s.conn == conn {
		return s
	}
	cfg := conn.Config()
	s := &session{conn: conn, mode: cfg.DefaultQueryExecMode, statements: map[string]*pgconn.StatementDescription{}}
	switch s.mode {
	case pgx.QueryExecModeCacheStatement:
		s.capacity = cfg.StatementCacheCapacity
	case pgx.QueryExecModeCacheDescribe:
		s.capacity = cfg.DescriptionCacheCapacity
	}
	data[sessionKey] = s
	return s
}

// idle reports whether the connection lives and has no open transaction.
func (s *session) idle() bool { return !s.conn.IsClosed() && s.conn.PgConn().TxStatus() == 'I' }

// query is a call in its sent form.
type query struct {
	sql  string
	desc *pgconn.StatementDescription
	pgx.ExtendedQueryBuilder
}

func (q *query) send(p *pgconn.Pipeline) {
	switch {
	case q.desc == nil:
		p.SendQueryParams(q.sql, q.ParamValues, nil, q.ParamFormats, nil)
	case q.desc.Name == "":
		p.SendQueryParams(q.sql, q.ParamValues, q.desc.ParamOIDs, q.ParamFormats, nil)
	default:
		p.SendQueryStatement(q.desc, q.ParamValues, q.ParamFormats, nil)
	}
}

// encode encodes each argument as pgx does in this mode. It encodes all of them before the
// first call is sent: an unsuitable one costs only its error.
func (s *session) encode(ctx context.Context, calls []dialect.Call) ([]*query, error) {
	descriptions, err := s.describe(ctx, calls)
	if err != nil {
		return nil, err
	}
	queries := make([]*query, len(calls))
	for i, call := range calls {
		q := &query{sql: call.SQL}
		// A text without arguments needs no description.
		if len(call.Args) > 0 {
			q.desc = descriptions[call.SQL]
			values := make([]any, len(call.Args))
			for j, a := range call.Args {
				values[j] = a.Value
			}
			if err := q.Build(s.conn.TypeMap(), q.desc, values); err != nil {
				return nil, err
			}
		}
		queries[i] = q
	}
	return queries, nil
}

// describe queries the server for the parameters of texts that are still unknown.
func (s *session) describe(ctx context.Context, calls []dialect.Call) (map[string]*pgconn.StatementDescription, error) {
	if s.mode == pgx.QueryExecModeExec {
		return nil, nil
	}
	descriptions := make(map[string]*pgconn.StatementDescription, len(calls))
	var missing []string
	for _, call := range calls {
		if _, ok := descriptions[call.SQL]; ok || len(call.Args) == 0 {
			continue
		}
		if descriptions[call.SQL] = s.statements[call.SQL]; descriptions[call.SQL] == nil {
			missing = append(missing, call.SQL)
		}
	}
	if len(missing) == 0 {
		return descriptions, nil
	}
	return descriptions, s.prepare(ctx, missing, descriptions)
}

func (s *session) prepare(ctx context.Context, texts []string, into map[string]*pgconn.StatementDescription) (err error) {
	p := s.conn.PgConn().StartPipeline(ctx)
	defer func() {
		if cerr := p.Close(); err == nil {
			err = cerr
		}
	}()
	stale := s.stale
	s.stale = nil
	for _, name := range stale {
		p.SendDeallocate(name)
	}
	names := make([]string, len(texts))
	for i, text := range texts {
		if s.mode == pgx.QueryExecModeCacheStatement && !s.unnamed {
			names[i] = nameOf(text)
		}
		p.SendPrepare(names[i], text, nil)
	}
	if err := p.Sync(); err != nil {
		return err
	}
	for range stale {
		if _, err := p.GetResults(); err != nil {
			return err
		}
	}
	for i, text := range texts {
		got, err := p.GetResults()
		if err != nil {
			return err
		}
		d, ok := got.(*pgconn.StatementDescription)
		if !ok {
			return errUnexpected
		}
		d = &pgconn.StatementDescription{Name: names[i], SQL: text, ParamOIDs: d.ParamOIDs, Fields: d.Fields}
		into[text] = d
		s.keep(text, d)
	}
	return nil
}

func (s *session) keep(text string, d *pgconn.StatementDescription) {
	if s.capacity <= 0 {
		return
	}
	for other := range s.statements {
		if len(s.statements) < s.capacity {
			break
		}
		s.drop(other)
	}
	s.statements[text] = d
}

func (s *session) drop(text string) {
	if d, ok := s.statements[text]; ok {
		delete(s.statements, text)
		if d.Name != "" {
			s.stale = append(s.stale, d.Name)
		}
	}
}

// forget drops the descriptions of calls after an error that may come from an outdated one:
// a column has another type, a pooler changed servers.
func (s *session) forget(calls []dialect.Call, err error) {
	if server := serverError(err); server != nil && len(server.Code) == 5 {
		switch server.Code[:2] {
		case "23", "40", "55", "57":
			return
		}
	}
	for _, call := range calls {
		s.drop(call.SQL)
	}
}

// resets is DISCARD ALL without DEALLOCATE ALL: pgx and database/sql rely on their prepared
// statements.
const resets = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; " +
	"SELECT pg_advisory_unlock_all(); DISCARD PLANS; DISCARD TEMP; DISCARD SEQUENCES"

var (
	errNotPgx = errors.New("bed: it is not a pgx connection")
	errPooled = errors.New("bed: behind a pooler a reset would also take away what the DSN sets")
)

// reset implements Dialect.Reset, in one round trip.
func reset(ctx context.Context, conn driver.Conn) error {
	if isPooled(conn) {
		return errPooled
	}
	std := stdlibConn(conn)
	if std == nil {
		return errNotPgx
	}
	_, err := std.Conn().PgConn().Exec(ctx, resets).ReadAll()
	return err
}
