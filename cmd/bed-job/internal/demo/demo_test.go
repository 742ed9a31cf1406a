package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
)

// The test binary is also the application killed by the demo.
func TestMain(m *testing.M) {
	if dir := os.Getenv(ApplicationVariable); dir != "" {
		if err := Application(context.Background(), dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(leaks.Patient(m))
}

// noBedJob replaces bed-job in tests of other things.
func noBedJob(context.Context, io.Writer, ...string) int { return 0 }

func TestDemoShowsAllOutcomesAndTheBooksBalance(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var commands []string
	err := Run(t.Context(), Options{Width: 100, Out: &out, BedJob: func(_ context.Context, _ io.Writer, args ...string) int {
		commands = append(commands, args[0])
		return 0
	}})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	rest := out.String()
	for _, want := range []string{
		"1  delivered", "bob_bank    delivered by the call itself",
		"bob_bank    failed (the call itself): database is locked", "bob_bank    delivered by sync retry",
		"2  refused", "CHECK constraint failed", "Exec returns the database's own error",
		"3  pending", "its file is moved away", "returns bedsql.ErrPending", "unreachable: bob_bank", "bob_bank    delivered by the job",
		"the program is killed in the middle of a staged transfer", "balance = balance + ?", "both\n    entries at once", "kill -9.",
		"$ bed-job list --verify", "lease of 3s is over", "claimed 2, delivered 2",
		"4  not accepted", "no such table", "Exec returns bedsql.ErrNotLogged",
		"For the operator", "bob_bank    parked: ", "at_most_500",
		"alice_bank              210  correct", "bob_bank               1190  correct",
		"alice_bank savings      425  correct", "bob_bank savings        575  correct",
		"parked in the log       600", "3000  of 3000", "Nothing is lost, nothing is there twice.",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("%q is missing, or not in its place, in\n%s", want, out.String())
		}
		rest = after
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours were written although it is no terminal")
	}
	_, after, _ := strings.Cut(out.String(), "lease of 3s is over")
	round, _, _ := strings.Cut(after, "claimed 2")
	for _, want := range []string{ // in either order
		"alice_bank  delivered already, its receipt is there: the job only removes the entry\n",
		"bob_bank    delivered by the job, its entry is removed\n",
	} {
		if !strings.Contains(round, want) {
			t.Errorf("%q is missing in the job's round\n%s", want, round)
		}
	}
	if got := strings.Join(commands, " "); got != "list list" {
		t.Errorf("bed-job was run as %s", got)
	}
}

func TestTheDemoFailsWhenABalanceIsWrong(t *testing.T) {
	t.Parallel()
	for name, meddle := range map[string]func(*world) error{
		"an entry too many": func(w *world) error {
			_, err := w.bob.bare.Exec(insertEntry, "forged", "bob", 1)
			return err
		},
		"an entry lost": func(w *world) error {
			_, err := w.alice.bare.Exec(`DELETE FROM entries WHERE transfer = 'rent'`)
			return err
		},
		"savings moved twice": func(w *world) error {
			for _, b := range []*bank{w.alice, w.bob} {
				if _, err := b.bare.Exec(moveSavings, map[*bank]int{w.alice: -moved, w.bob: moved}[b], b.owner); err != nil {
					return err
				}
			}
			return nil
		},
		"the parked log lost": func(w *world) error {
			return w.log.Discard(context.Background(), w.parkedID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			beforeTheBooks := slices.Insert(slices.Clone(steps), len(steps)-2, func(w *world, _ context.Context) error { return meddle(w) })
			err := run(t.Context(), Options{Width: 100, Out: &out, BedJob: noBedJob}, beforeTheBooks)
			if !errors.Is(err, ErrBooks) {
				t.Errorf("got %v\n%s", err, out.String())
			}
			if strings.Contains(out.String(), "Nothing is lost") {
				t.Errorf("it says that all is well:\n%s", out.String())
			}
		})
	}
}

func TestTheDemoFailsWhenBedJobDoes(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Options{Width: 100, Out: io.Discard, BedJob: func(context.Context, io.Writer, ...string) int { return 1 }})
	if err == nil || !strings.Contains(err.Error(), "bed-job list ended with status 1") {
		t.Errorf("got %v", err)
	}
}

func TestTheDemoLeavesNothingBehindUnlessAsked(t *testing.T) {
	for _, keep := range []bool{false, true} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		if err := Run(t.Context(), Options{Width: 100, Out: io.Discard, BedJob: noBedJob, Keep: keep}); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if kept := len(left) > 0; kept != keep {
			t.Errorf("with keep %v, %d directories are left", keep, len(left))
		}
	}
}

func TestTheDemoEndsWhenItIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"another connection locks", "It calls End"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := Run(ctx, Options{Width: 100, Out: writerFunc(func(p []byte) (int, error) {
			if bytes.Contains(p, []byte(when)) {
				cancel()
				time.Sleep(100 * time.Millisecond) // so that the program which ends with ctx, if there is one, is gone
			}
			return len(p), nil
		}), BedJob: noBedJob})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v", when, err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
