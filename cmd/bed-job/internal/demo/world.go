package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

const (
	aliceBank, bobBank = "alice_bank", "bob_bank"

	opening  = 1000
	savings  = 500 // of each owner at the beginning
	maxEntry = 500

	// These are Alice's payments to Bob; the car exceeds the limit of his bank.
	rent, groceries, tickets, car = 100, 50, 40, 600

	insertEntry = `INSERT INTO entries (transfer, account, amount) VALUES (?, ?, ?) ON CONFLICT (transfer) DO NOTHING`
)

// A bank is one database.
type bank struct {
	name, owner string
	file, dsn   string
	wrapped     *sql.DB // through bed
	bare        *sql.DB // for the faults and the balances
}

// A world is the banks, the log and the job.
type world struct {
	Options
	dir        string
	alice, bob *bank
	log        *txlog.SQLStorage
	bus        *listener.Bus
	job        *asyncjob.Job
	// opened is closed at the end, the last first.
	opened []io.Closer
	// parkedID is the entry waiting for an operator.
	parkedID string
	// afterFailure is called once, after bob's bank has failed, unless it is nil.
	afterFailure func()
	// last is the last report of an event; repetitions are printed once.
	last string
}

func newWorld(ctx context.Context, o Options, dir string) (_ *world, err error) {
	w := &world{Options: o, dir: dir, bus: listener.NewBus(quiet())}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("setting the demo up: %w", err), w.close())
		}
	}()
	if w.log, err = txlog.Open(ctx, "sqlite", logDSN(dir)); err != nil {
		return nil, err
	}
	w.opened = append(w.opened, w.log)
	targets := asyncjob.Targets{}
	if w.alice, err = w.newBank(ctx, aliceBank, "alice", targets); err != nil {
		return nil, err
	}
	if w.bob, err = w.newBank(ctx, bobBank, "bob", targets); err != nil {
		return nil, err
	}
	if w.job, err = asyncjob.New(w.log, targets, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Bus: w.bus, Logger: quiet(),
	}); err != nil {
		return nil, err
	}
	w.opened = append(w.opened, w.job)
	return w, w.configure("")
}

func (w *world) close() error {
	var errs []error
	for _, c := range slices.Backward(w.opened) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func (w *world) newBank(ctx context.Context, name, owner string, targets asyncjob.Targets) (b *bank, err error) {
	b = &bank{name: name, owner: owner, file: filepath.Join(w.dir, name+".db"), dsn: bankDSN(w.dir, name, 100*time.Millisecond)}
	if b.bare, err = sql.Open("sqlite", fileDSN(b.file)); err != nil {
		return nil, err
	}
	w.opened = append(w.opened, b.bare)
	receipts, err := attempt.ReceiptSchema("sqlite")
	if err != nil {
		return nil, err
	}
	if _, err := b.bare.ExecContext(ctx, receipts+fmt.Sprintf(`;
CREATE TABLE entries (
	transfer TEXT PRIMARY KEY,
	account  TEXT NOT NULL,
	amount   INTEGER NOT NULL CONSTRAINT at_most_%[1]d CHECK (amount <= %[1]d OR transfer = 'opening')
);
CREATE TABLE savings (owner TEXT PRIMARY KEY, balance INTEGER NOT NULL);
INSERT INTO entries VALUES ('opening', '%[2]s', %[3]d);
INSERT INTO savings VALUES ('%[2]s', %[4]d)`, maxEntry, owner, opening, savings)); err != nil {
		return nil, err
	}
	if targets[name], err = sqlite.Target(b.dsn); err != nil {
		return nil, err
	}
	b.wrapped, err = openWrapped(b.dsn, bedsql.Config{
		Storage: w.log, Bus: w.bus, Logger: quiet(),
		// Long enough for the lock of the first way to be let go on a busy machine.
		RetryInitial: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	w.opened = append(w.opened, b.wrapped)
	// An open connection would go on writing to a file after its move.
	b.bare.SetMaxIdleConns(0)
	b.wrapped.SetMaxIdleConns(0)
	return b, nil
}

// openWrapped opens a bank through bed.
func openWrapped(dsn string, cfg bedsql.Config) (*sql.DB, error) {
	target, err := sqlite.Target(dsn)
	if err != nil {
		return nil, err
	}
	connector, err := sqlite.NewConnector(target, cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// enter writes one side of a transfer.
func (b *bank) enter(ctx context.Context, transfer string, amount int) error {
	_, err := b.wrapped.ExecContext(ctx, insertEntry, transfer, b.owner, amount)
	return err
}

// lock holds the bank's write lock on a connection of its own until unlock.
func (b *bank) lock(ctx context.Context) (unlock func() error, err error) {
	conn, err := b.bare.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return errors.Join(err, conn.Close())
	}, nil
}

// say prints text. It breaks long lines at blanks and indents the rest further; a word wider than a
// line stays whole.
func (w *world) say(format string, args ...any) {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		indent := len(line) - len(strings.TrimLeft(line, " ")) + 4
		for len(line) > w.Width {
			end := strings.LastIndexByte(line[:w.Width+1], ' ')
			if end < indent {
				break
			}
			fmt.Fprintln(w.Out, line[:end])
			line = strings.Repeat(" ", indent) + line[end+1:]
		}
		fmt.Fprintln(w.Out, line)
	}
}

// told runs a step and reports the fate of its writes. It returns after all reports.
func (w *world) told(step func() error) error {
	w.last = ""
	defer w.bus.Subscribe(w.event).Close()
	return step()
}

// event tells of one attempt.
func (w *world) event(ev listener.Event) {
	who := map[listener.Origin]string{
		listener.Caller: "the call itself", listener.SyncRetry: "sync retry", listener.AsyncJob: "the job",
	}[ev.Origin]
	what := ""
	switch {
	case ev.Type == listener.BeforeExecute && ev.Origin == listener.Caller:
		what = "the entry is durable, the write is sent"
	case ev.Type == listener.ExecuteSuccess && ev.Found:
		what = "delivered already, its receipt is there: " + who + " only removes the entry"
	case ev.Type == listener.ExecuteSuccess:
		what = "delivered by " + who + ", its entry is removed"
	case ev.Type == listener.ExecuteFailure:
		what = fmt.Sprintf("failed (%s): %v", who, ev.Err)
	case ev.Type == listener.Parked:
		what = fmt.Sprintf("parked: %v", ev.Err)
	default:
		return
	}
	if line := fmt.Sprintf("      %-10s  %s", ev.DataSource, what); line != w.last {
		w.last = line
		w.say("%s", line)
	}
	if do := w.afterFailure; do != nil && ev.Type == listener.ExecuteFailure && ev.DataSource == bobBank {
		w.afterFailure = nil
		do()
	}
}

func (w *world) configFile() string { return filepath.Join(w.dir, "bed-job.yaml") }

// configure writes the configuration for the commands of bed-job.
func (w *world) configure(more string) error {
	// A dollar sign in a path is no variable.
	quote := func(dsn string) string { return strconv.Quote(strings.ReplaceAll(dsn, "$", "$$")) }
	return os.WriteFile(w.configFile(), fmt.Appendf(nil, `targetDataSource:
  %s: {driver: sqlite, dsn: %s}
  %s: {driver: sqlite, dsn: %s}
transactionLogDataSource: {driver: sqlite, dsn: %s}
jobConfig: {maxDeliveryTryDelayMillis: 0}
%s`, aliceBank, quote(w.alice.dsn), bobBank, quote(w.bob.dsn), quote(logDSN(w.dir)), more), 0o600)
}

// command runs a command of bed-job with the demo's configuration.
func (w *world) command(ctx context.Context, args ...string) error {
	w.say("\n$ bed-job %s", strings.Join(args, " "))
	if status := w.BedJob(ctx, w.Out, append(args, "-c", w.configFile())...); status != 0 {
		return fmt.Errorf("bed-job %s ended with status %d", args[0], status)
	}
	return nil
}

// serve leaves a job running until ctx is done, with its console on request, so that the viewer can
// look at the parked entry, try it and decide.
func (w *world) serve(ctx context.Context) error {
	if !w.Console {
		return nil
	}
	// The console's process runs its own job, which should be the only one in the list.
	if err := w.job.Close(); err != nil {
		return err
	}
	free, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("the console has nowhere to listen: %w", err)
	}
	address := free.Addr().String()
	if err := errors.Join(free.Close(), w.configure(fmt.Sprintf("console: {listen: %q}\n", address))); err != nil {
		return err
	}
	w.say("\nThe console: open http://%s/ in a browser: Bob's car is parked there.", address)
	w.say("\"Try it\" says why it is refused; \"Retry\" has the job try it again, \"Discard\" gives it up.")
	w.say("Ctrl-C ends the demo.")
	return w.command(ctx, "run", "--log-level", "error")
}

func logDSN(dir string) string { return fileDSN(filepath.Join(dir, "transaction_log.db")) }

// bankDSN is the DSN of a bank for the wrapped driver. With mode=rw a missing file is an
// outage, not a new empty bank.
func bankDSN(dir, name string, waitForLocks time.Duration) string {
	return fmt.Sprintf("%s?mode=rw&_pragma=busy_timeout(%d)&bedDataSource=%s", fileDSN(filepath.Join(dir, name+".db")), waitForLocks.Milliseconds(), name)
}

// fileDSN is the DSN of an existing or new file.
func fileDSN(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }
