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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

	// What Alice sends Bob; the car is more than his bank takes.
	rent, groceries, tickets, car = 100, 50, 40, 600

	insertEntry = `INSERT INTO entries (transfer, account, amount) VALUES (?, ?, ?) ON CONFLICT (transfer) DO NOTHING`
)

var createEntries = fmt.Sprintf(`CREATE TABLE entries (
	transfer TEXT PRIMARY KEY,
	account  TEXT NOT NULL,
	amount   INTEGER NOT NULL CONSTRAINT at_most_%[1]d CHECK (amount <= %[1]d OR transfer = 'opening')
)`, maxEntry)

const createSavings = `CREATE TABLE savings (owner TEXT PRIMARY KEY, balance INTEGER NOT NULL);
	INSERT INTO savings VALUES (?, ?)`

// A bank is one database.
type bank struct {
	name, owner string
	file        string
	dsn         string
	wrapped     *sql.DB // through bed
	bare        *sql.DB // for the faults and the balances
}

// A world is the banks, the log and the job.
type world struct {
	narrator   *narrator
	dir        string
	driver     string
	alice, bob *bank
	log        *txlog.SQLStorage
	logDSN     string
	bus        *listener.Bus
	job        *asyncjob.Job
	// parkedID is the entry that waits for an operator.
	parkedID string
}

// registered counts the worlds of this process: a driver's name is taken once.
var registered atomic.Int64

func newWorld(ctx context.Context, dir string, n *narrator) (_ *world, err error) {
	quiet := quiet()
	w := &world{narrator: n, dir: dir, driver: "bed-sqlite", bus: listener.NewBus(quiet)}
	if i := registered.Add(1); i > 1 {
		w.driver = fmt.Sprintf("bed-sqlite-%d", i)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("setting the demo up: %w", err), w.close())
		}
	}()
	w.logDSN = logDSN(dir)
	if w.log, err = txlog.Open(ctx, "sqlite", w.logDSN); err != nil {
		return nil, err
	}
	if err := sqlite.Register(w.driver, bedsql.Config{
		Storage: w.log, Bus: w.bus, Logger: quiet,
		// Long enough for the lock of the second way to be let go on a busy machine.
		RetryInitial: 100 * time.Millisecond,
	}); err != nil {
		return nil, err
	}
	if w.alice, err = newBank(ctx, dir, aliceBank, "alice", w.driver); err != nil {
		return nil, err
	}
	if w.bob, err = newBank(ctx, dir, bobBank, "bob", w.driver); err != nil {
		return nil, err
	}
	targets := asyncjob.Targets{}
	for _, b := range w.banks() {
		if targets[b.name], err = sqlite.Target(b.dsn); err != nil {
			return nil, err
		}
	}
	w.job, err = asyncjob.New(w.log, targets, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Bus: w.bus, Logger: quiet,
	})
	return w, err
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// fileDSN is the DSN of an existing or new file.
func fileDSN(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }

func newBank(ctx context.Context, dir, name, owner, driver string) (*bank, error) {
	b := &bank{name: name, owner: owner, file: bankFile(dir, name), dsn: bankDSN(dir, name, 100*time.Millisecond)}
	receipts, err := attempt.ReceiptSchema("sqlite")
	if err != nil {
		return nil, err
	}
	if b.bare, err = sql.Open("sqlite", fileDSN(b.file)); err != nil {
		return nil, err
	}
	b.bare.SetMaxIdleConns(0)
	if _, err = b.bare.ExecContext(ctx, createEntries+";"+receipts); err == nil {
		_, err = b.bare.ExecContext(ctx, insertEntry, "opening", owner, opening)
	}
	if err == nil {
		_, err = b.bare.ExecContext(ctx, createSavings, owner, savings)
	}
	if err == nil {
		b.wrapped, err = sql.Open(driver, b.dsn)
	}
	if err != nil {
		return nil, errors.Join(err, b.bare.Close())
	}
	// A connection kept open would go on writing to a file that was moved away.
	b.wrapped.SetMaxIdleConns(0)
	return b, nil
}

func (w *world) banks() []*bank { return []*bank{w.alice, w.bob} }

func (w *world) close() error {
	var errs []error
	if w.job != nil {
		errs = append(errs, w.job.Close())
	}
	for _, b := range w.banks() {
		if b != nil {
			errs = append(errs, b.wrapped.Close(), b.bare.Close())
		}
	}
	if w.log != nil {
		errs = append(errs, w.log.Close())
	}
	return errors.Join(errs...)
}

// watch narrates events until stop, which waits until all are narrated. Then
// deliveredBy says who delivered the last write to a bank.
func (w *world) watch(also func(listener.Event)) (deliveredBy func(bank string) listener.Origin, stop func()) {
	by := map[string]listener.Origin{}
	var mu sync.Mutex
	s := w.bus.Subscribe(func(ev listener.Event) {
		w.narrator.event(ev)
		if ev.Type == listener.ExecuteSuccess {
			mu.Lock()
			by[ev.DataSource] = ev.Origin
			mu.Unlock()
		}
		if also != nil {
			also(ev)
		}
	})
	return func(bank string) listener.Origin {
		mu.Lock()
		defer mu.Unlock()
		return by[bank]
	}, s.Close
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

// takeAway moves the bank's file away until back.
func (b *bank) takeAway() (back func() error, err error) {
	away := b.file + ".away"
	if err := os.Rename(b.file, away); err != nil {
		return nil, err
	}
	return func() error { return os.Rename(away, b.file) }, nil
}

func (b *bank) balance(ctx context.Context) (sum int64, err error) {
	err = b.bare.QueryRowContext(ctx, `SELECT COALESCE(SUM(amount), 0) FROM entries`).Scan(&sum)
	return sum, err
}

func (b *bank) savings(ctx context.Context) (sum int64, err error) {
	err = b.bare.QueryRowContext(ctx, `SELECT balance FROM savings WHERE owner = ?`, b.owner).Scan(&sum)
	return sum, err
}

func (w *world) configFile() string { return filepath.Join(w.dir, "bed-job.yaml") }

// command runs a command of bed-job with a configuration for the demo.
func (w *world) command(ctx context.Context, o Options, args ...string) error {
	if err := os.WriteFile(w.configFile(), []byte(w.configuration()), 0o600); err != nil {
		return err
	}
	w.narrator.say("\n%s", w.narrator.bold("$ bed-job "+strings.Join(args, " ")))
	if status := o.BedJob(ctx, o.Out, append(args, "-c", w.configFile())...); status != 0 {
		return fmt.Errorf("bed-job %s ended with status %d", args[0], status)
	}
	return nil
}

func (w *world) configuration() string {
	var b strings.Builder
	b.WriteString("targetDataSource:\n")
	// A dollar sign in a path is no variable.
	quote := func(dsn string) string { return strconv.Quote(strings.ReplaceAll(dsn, "$", "$$")) }
	for _, bank := range w.banks() {
		fmt.Fprintf(&b, "  %s: {driver: sqlite, dsn: %s}\n", bank.name, quote(bank.dsn))
	}
	fmt.Fprintf(&b, "transactionLogDataSource: {driver: sqlite, dsn: %s}\n", quote(w.logDSN))
	b.WriteString("jobConfig: {maxDeliveryTryDelayMillis: 0}\n")
	return b.String()
}

// consoleAddress is where the demo's console is, if nothing else is there.
const consoleAddress = "127.0.0.1:8390"

// serve leaves a job running with its console, until ctx is done: the parked entry
// is there to be looked at, tried and decided.
func (w *world) serve(ctx context.Context, o Options) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	text := w.configuration() + fmt.Sprintf("console: {listen: %q}\n", address)
	if err := os.WriteFile(w.configFile(), []byte(text), 0o600); err != nil {
		return err
	}
	n := w.narrator
	n.title("The console", "bed-job run with console.listen")
	n.say("Open %s in a browser: Bob's car is parked there.", n.bold("http://"+address+"/"))
	n.say("\"Try it\" says why it is refused; \"Retry\" has the job try it again, \"Discard\" gives it up.")
	n.say("Ctrl-C ends the demo.")
	if status := o.BedJob(ctx, o.Out, "run", "--log-level", "error", "-c", w.configFile()); status != 0 {
		return fmt.Errorf("bed-job run ended with status %d", status)
	}
	return nil
}

// freeAddress is consoleAddress, or one that is free.
func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", consoleAddress)
	if err != nil {
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return "", fmt.Errorf("the console has nowhere to listen: %w", err)
		}
	}
	address := l.Addr().String()
	return address, l.Close()
}
