// Command summary reads what "go test -json" writes and prints what "go test"
// would: a line for each package and, in full, what failed. It closes with a line
// of counts. Lines that are not JSON pass through. With -v among its arguments it prints all
// that the tests do. The exit status is 1 if something failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	s := newSummary(os.Stdout, slices.Contains(os.Args[1:], "-v"))
	err := s.read(os.Stdin)
	s.close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || s.failed > 0 {
		os.Exit(1)
	}
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// A unit is a test, or what a package says outside its tests.
type unit struct{ pkg, test string }

type summary struct {
	out                     io.Writer
	verbose                 bool
	packages                int
	passed, failed, skipped int
	// reasons counts the tests that were skipped for each.
	reasons map[string]int
	// open is what the units that have not ended have printed.
	open map[unit][]string
	// broken are the packages of which a test failed.
	broken map[string]bool
}

func newSummary(out io.Writer, verbose bool) *summary {
	return &summary{out: out, verbose: verbose, reasons: map[string]int{}, open: map[unit][]string{}, broken: map[string]bool{}}
}

func (s *summary) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil {
			fmt.Fprint(s.out, line)
		} else {
			s.event(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) event(e event) {
	u := unit{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		if s.verbose {
			fmt.Fprint(s.out, e.Output)
		}
		s.open[u] = append(s.open[u], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.packageEnded(u, e.Action)
			return
		}
		switch e.Action {
		case "pass":
			s.passed++
		case "skip":
			s.skipped++
			s.reasons[reason(s.open[u])]++
		case "fail":
			s.failed++
			s.broken[e.Package] = true
			s.print(u)
		}
		delete(s.open, u)
	}
}

// packageEnded prints the package's line. Of one that failed it prints all that it
// said, and of the tests that a panic or a timeout cut off.
func (s *summary) packageEnded(u unit, how string) {
	s.packages++
	if how == "fail" {
		for _, cut := range slices.SortedFunc(maps.Keys(s.open), func(a, b unit) int { return cmp.Compare(a.test, b.test) }) {
			if cut.pkg != u.pkg || cut.test == "" {
				continue
			}
			s.failed++
			s.broken[u.pkg] = true
			s.print(cut)
			delete(s.open, cut)
		}
		if !s.broken[u.pkg] { // it could not be built, or failed outside its tests
			s.failed++
		}
		s.print(u)
	} else if said := s.open[u]; len(said) > 0 && !s.verbose {
		fmt.Fprint(s.out, said[len(said)-1])
	}
	delete(s.open, u)
}

// progress is what go test -v says of tests that begin, wait and go on.
var progress = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME) `)

func (s *summary) print(u unit) {
	if s.verbose {
		return // it is printed already
	}
	for _, line := range s.open[u] {
		if !progress.MatchString(line) {
			fmt.Fprint(s.out, line)
		}
	}
}

var said = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)

// reason is what a skipped test said last.
func reason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		if m := said.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return "for no reason"
}

// close prints the counts of packages and of reasons, and then those of tests.
func (s *summary) close() {
	fmt.Fprintf(s.out, "packages: %d", s.packages)
	for _, r := range slices.Sorted(maps.Keys(s.reasons)) {
		fmt.Fprintf(s.out, "; %d skipped: %s", s.reasons[r], r)
	}
	fmt.Fprintf(s.out, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
}
