package soak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unique"
)

// Line is one line of a journal. A send has one of event Send, written before
// anything is sent, and if its process lived so long one of event Answer. In
// between there may be one of event Step for each write of an immediate soft
// transaction that Exec took.
type Line struct {
	Event   string
	Send    string // names the attempt to send Request, once
	Request string
	// At is when, on a clock of the machine that nobody sets: before anything is
	// sent, and after all is answered.
	At int64 `json:",omitempty"`

	// Of event Send.
	Kind  string `json:",omitempty"`
	Steps []Step `json:",omitempty"`
	// Atomic: the steps take effect together or not at all.
	Atomic bool `json:",omitempty"`
	// Keyed: it may be sent more than once, and takes effect once.
	Keyed bool `json:",omitempty"`
	// Reads: it is not run again; pending means that it is decided later.
	Reads bool `json:",omitempty"`
	// Turns: it is a group whose steps on accounts are undone if it turns back. Late: so
	// it may although nothing is refused.
	Turns bool `json:",omitempty"`
	Late  bool `json:",omitempty"`

	// Logging is when its entry is written, if not before it is sent.
	Logging string `json:",omitempty"`

	// Of event Step.
	Step int `json:",omitempty"`

	// Of event Answer.
	Outcomes []Outcome `json:",omitempty"` // of each step
	Values   []int64   `json:",omitempty"` // of each step: what it answered, below 0 if that is not known
	Replayed bool      `json:",omitempty"`
	Detail   string    `json:",omitempty"` // the error
}

// Events.
const (
	EventSend   = "send"
	EventStep   = "step"
	EventAnswer = "answer"
)

// Step is one write of a request: n is added to an account of a target. Where it
// is applied, a row in the table effect names it; see EffectName. With an Op it
// is for a register of that id; see OpSet.
type Step struct {
	Op      string `json:",omitempty"`
	Target  string
	Account int64
	N       int64
	// Refuse: the target's constraint forbids it.
	Refuse bool `json:",omitempty"`
}

// undoName is how what undoes a step is called there.
func undoName(request string, step int) string { return EffectName(request, step) + "/undo" }

// EffectName is how a step is called in the table effect.
func EffectName(request string, step int) string { return fmt.Sprintf("%s/%d", request, step) }

// Outcome is what a caller got.
type Outcome string

// Outcomes.
const (
	Delivered Outcome = "delivered"
	Pending   Outcome = "pending"
	// Doubt is pending where it is not even known whether the log was written.
	Doubt Outcome = "doubt"
	// Refused is an error of the database that no retry can help.
	Refused   Outcome = "refused"
	NotLogged Outcome = "not logged"
	// Unknown is an error after which it is known neither whether it was applied nor
	// anything in the log.
	Unknown Outcome = "unknown"
	// Failed is an error after which nothing was committed: of connecting, of
	// preparing, of the caller's own context, or in a local transaction.
	Failed Outcome = "failed"
	// Undone is of a group that has turned back.
	Undone Outcome = "undone"
)

// ReadJournals reads all journals of a directory. A line that a killed process
// left unfinished is as if it had not been begun: it is the last one.
func ReadJournals(dir string) ([]Line, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var all []Line
	for _, name := range files {
		if all, err = readJournal(all, name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

func readJournal(all []Line, name string) ([]Line, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var torn error
	sc := bufio.NewScanner(f)
	for sc.Buffer(nil, 1<<20); sc.Scan(); {
		if torn != nil {
			return nil, torn
		}
		var l Line
		if torn = json.Unmarshal(sc.Bytes(), &l); torn == nil {
			all = append(all, l.compact())
		}
	}
	return all, sc.Err()
}

// compact shares the words that most lines have: there are millions of lines.
func (l Line) compact() Line {
	share := func(s *string) { *s = unique.Make(*s).Value() }
	share(&l.Event)
	share(&l.Kind)
	share(&l.Logging)
	for i := range l.Steps {
		share(&l.Steps[i].Op)
		share(&l.Steps[i].Target)
	}
	for i, o := range l.Outcomes {
		l.Outcomes[i] = unique.Make(o).Value()
	}
	return l
}
