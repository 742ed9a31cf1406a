package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/bedsql/bed/bench"
)

// The settings of river's own benchmark.
const (
	riverWorkers      = 2000
	riverFetchCool    = 2 * time.Millisecond
	riverPollInterval = 20 * time.Millisecond
	riverConns        = 32
)

// updateArgs is a job of one UPDATE.
type updateArgs struct {
	ID int64 `json:"id"`
}

// Kind implements river.JobArgs.
func (updateArgs) Kind() string { return "update" }

// updateWorker runs it on the bare driver.
type updateWorker struct {
	river.WorkerDefaults[updateArgs]
	pool      *sql.DB
	statement string
}

// Work implements river.Worker.
func (w *updateWorker) Work(ctx context.Context, job *river.Job[updateArgs]) error {
	_, err := w.pool.ExecContext(ctx, w.statement, job.Args.ID)
	return err
}

// fillRiver sets river up with a job for each id.
func fillRiver(ctx context.Context, dsn string, pool *sql.DB, statement string, ids []int64) (_ bench.Filled, err error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return bench.Filled{}, err
	}
	cfg.MaxConns, cfg.MinConns = riverConns, riverConns
	conns, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return bench.Filled{}, err
	}
	defer func() {
		if err != nil {
			conns.Close()
		}
	}()
	migrator, err := rivermigrate.New(riverpgxv5.New(conns), nil)
	if err != nil {
		return bench.Filled{}, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return bench.Filled{}, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &updateWorker{pool: pool, statement: statement})
	client, err := river.NewClient(riverpgxv5.New(conns), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
		Workers:           workers,
		FetchCooldown:     riverFetchCool,
		FetchPollInterval: riverPollInterval,
		Logger:            slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return bench.Filled{}, err
	}
	r := &riverRun{client: client, conns: conns, jobs: len(ids)}
	if err := r.start(ctx); err != nil {
		return bench.Filled{}, errors.Join(err, r.close(ctx))
	}
	for rest := ids; len(rest) > 0; {
		n := min(len(rest), 1000)
		jobs := make([]river.InsertManyParams, n)
		for i := range jobs {
			jobs[i].Args = updateArgs{ID: rest[i]}
		}
		if _, err := client.InsertMany(ctx, jobs); err != nil {
			return bench.Filled{}, errors.Join(err, r.close(ctx))
		}
		rest = rest[n:]
	}
	return bench.Filled{Drain: r.drain, Close: r.close}, nil
}

type riverRun struct {
	client *river.Client[pgx.Tx]
	conns  *pgxpool.Pool
	jobs   int
}

// start starts the workers with the queue paused.
func (r *riverRun) start(ctx context.Context) error {
	paused, cancel := r.client.Subscribe(river.EventKindQueuePaused)
	defer cancel()
	if err := r.client.Start(ctx); err != nil {
		return err
	}
	if err := r.client.QueuePause(ctx, river.QueueDefault, nil); err != nil {
		return err
	}
	select {
	case <-paused:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain lets the workers begin. An event reports each completed job.
func (r *riverRun) drain(ctx context.Context) error {
	events, cancel := r.client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: r.jobs + 1,
		Kinds:    []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed},
	})
	defer cancel()
	if err := r.client.QueueResume(ctx, river.QueueDefault, nil); err != nil {
		return err
	}
	for range r.jobs {
		select {
		case event := <-events:
			if event == nil || event.Kind == river.EventKindJobFailed {
				return errors.New("river: a job failed")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *riverRun) close(ctx context.Context) error {
	defer r.conns.Close()
	if err := r.client.Stop(ctx); err != nil {
		return err
	}
	var left int64
	err := r.conns.QueryRow(ctx, "SELECT COUNT(*) FROM river_job WHERE state <> 'completed'").Scan(&left)
	if err == nil && left != 0 {
		err = fmt.Errorf("river: %d jobs are not completed", left)
	}
	_, cleared := r.conns.Exec(ctx, "TRUNCATE river_job")
	return errors.Join(err, cleared)
}
