package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noBedJob stands for bed-job where a test is not about it.
func noBedJob(context.Context, io.Writer, ...string) int { return 0 }

func TestTheDemoShowsAllFourWaysAndTheBooksBalance(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var commands []string
	err := Run(t.Context(), Options{Out: &out, BedJob: func(_ context.Context, _ io.Writer, args ...string) int {
		commands = append(commands, args[0])
		return 0
	}})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	rest := out.String()
	for _, want := range []string{
		"1  delivered", "bob_bank    delivered by the call itself",
		"2  delivered by sync retry", "bob_bank    failed (the call itself): database is locked", "bob_bank    delivered by sync retry",
		"3  delivered by the job", "errors.Is(err, bedsql.ErrPending)", "bob_bank    failed (the job)", "bob_bank    delivered by the job",
		"its file is moved away", "is bedsql.ErrPending", "unreachable: bob_bank", "bob_bank    delivered by the job",
		"4  parked", "bob_bank    parked: ", "at_most_500",
		"alice_bank              185  as it must be", "bob_bank               1215  as it must be",
		"parked in the log       600", "2000  of 2000", "Nothing is lost, nothing is there twice.",
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
	if got := strings.Join(commands, " "); got != "stats list show" {
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
		"the parked log lost": func(w *world) error {
			return w.log.Discard(context.Background(), w.parkedID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := Run(t.Context(), Options{Out: &out, BedJob: noBedJob, meddle: meddle})
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
	err := Run(t.Context(), Options{Out: io.Discard, BedJob: func(context.Context, io.Writer, ...string) int { return 1 }})
	if err == nil || !strings.Contains(err.Error(), "bed-job stats ended with status 1") {
		t.Errorf("got %v", err)
	}
}

func TestTheDemoLeavesNothingBehindUnlessAsked(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		dir := t.TempDir()
		if err := Run(t.Context(), Options{parent: dir, Out: io.Discard, BedJob: noBedJob, Keep: keep}); err != nil {
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
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Run(ctx, Options{Out: writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("stays locked")) {
			cancel()
		}
		return len(p), nil
	}), BedJob: noBedJob})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
