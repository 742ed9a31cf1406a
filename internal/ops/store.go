package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

var (
	// ErrInvalid is matched by the error of an invalid request: an unknown state, a limit below 0,
	// a discard without a reason, an empty data source name.
	ErrInvalid = errors.New("ops: the request is not valid")
	// ErrUnknownDataSource reports a name unknown to both the log and the configuration.
	ErrUnknownDataSource = errors.New("ops: unknown data source")
	// ErrNoTarget reports that the configuration lacks the data source's target, so that we cannot
	// ask it.
	ErrNoTarget = errors.New("ops: the data source is not configured")
	// ErrTarget reports an unreachable or silent target.
	ErrTarget = errors.New("ops: the target cannot be asked")
	// ErrNoAnswer reports that the log did not answer within Config.AnswerWithin.
	ErrNoAnswer = errors.New("ops: the log did not answer in time")
	// ErrNoTables reports that the log's database lacks a table of the console, or that the account
	// may not use it; the error names it.
	ErrNoTables = errors.New("ops: a table of the console's cannot be used")
)

// Config is the configuration of a store, beside the log.
type Config struct {
	// Targets are the data sources by their names in the log: asyncjob.Targets.
	// Verdicts and trials are for these.
	Targets map[string]delivery.Target
	// Problems say why configured data sources cannot be used; the text under ""
	// is about the whole configuration.
	Problems map[string]string
	// MinAge is how old an entry must be before the job touches it:
	// asyncjob.Config.MaxDeliveryTryDelay. Defaults to 0.
	MinAge time.Duration
	// AnswerWithin bounds each answer of the log during Try. The default is no bound.
	AnswerWithin time.Duration
	// Clean removes secrets, such as a DSN's password, from displayed texts. The default removes
	// none.
	Clean func(string) string
}

func (c *Config) complete() {
	if c.Clean == nil {
		c.Clean = func(s string) string { return s }
	}
}

// Store answers an operator's questions and carries decisions out. It is safe
// for concurrent use.
type Store struct {
	log     txlog.Storage
	sql     logdb.SQL
	journal *journal.Journal
	cfg     Config
	// whole is the number of rows to group regardless of time, groupFor the time for further rows.
	whole    int
	groupFor time.Duration
}

// answer bounds an answer of the log.
func (s *Store) answer(ctx context.Context, ask func(context.Context) error) error {
	if s.cfg.AnswerWithin <= 0 {
		return ask(ctx)
	}
	bounded, cancel := context.WithTimeout(ctx, s.cfg.AnswerWithin)
	defer cancel()
	err := ask(bounded)
	if err != nil && dberr.TimedOut(ctx, bounded) {
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	return err
}

// New makes a store on a log in a database. The caller closes the log. New dials no database.
func New(log txlog.Storage, cfg Config) (*Store, error) {
	inside := logdb.Of(log)
	if inside == nil {
		return nil, errors.New("ops: log is nil: open it with txlog.Open")
	}
	cfg.complete()
	j := inside.Journal()
	if j == nil {
		return nil, fmt.Errorf("ops: %w", txlog.ErrClosed)
	}
	return &Store{log, inside, j, cfg, wholeRows, searchFor}, nil
}

// By names the operator and the reason.
type By struct {
	// Who is a name for the audit, at most 255 characters: "ann", "token grafana".
	Who string
	// Reason is required to discard, skip, amend and compensate; at most 1000 characters.
	Reason string
}

// row runs a query for a single row.
func (s *Store) row(ctx context.Context, into []any, query string, args ...any) error {
	return s.fault(s.journal.DB().QueryRowContext(ctx, s.journal.Flavor.Text(query), args...).Scan(into...))
}

// now is the log's clock.
func (s *Store) now(ctx context.Context) (time.Time, error) {
	var now int64
	err := s.row(ctx, []any{&now}, `SELECT {now}`)
	return time.UnixMilli(now).UTC(), err
}

// in returns a condition that matches the given rows, and its arguments.
func in(ids []string) (condition string, args []any) {
	for _, id := range ids {
		args = append(args, id)
	}
	return `id IN (` + sqltext.List(len(ids), `?`, `, `) + `)`, args
}

// texts returns the only column of a query's rows.
func (s *Store) texts(ctx context.Context, query string, args ...any) (all []string, err error) {
	err = s.each(ctx, func(rows *sql.Rows) error {
		var text string
		err := rows.Scan(&text)
		all = append(all, text)
		return err
	}, query, args...)
	return all, err
}

// each runs a query and calls scan for each row. scan must not run queries: SQLite has one
// connection.
func (s *Store) each(ctx context.Context, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := s.journal.DB().QueryContext(ctx, s.journal.Flavor.Text(query), args...)
	if err != nil {
		return s.fault(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return s.fault(err)
		}
	}
	return s.fault(rows.Err())
}

// fault is an error of the log's database.
func (s *Store) fault(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ops: the transaction log: %w", err)
}

// Ping asks the log's database for an answer.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	return s.row(ctx, []any{&one}, `SELECT 1`)
}
