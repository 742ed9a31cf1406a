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

// Line is one line of a journal. A send has a line of event Send, written before sending, and one
// of event Answer if its process lived so long. Between them, each write that Exec accepted in an
// immediate soft transaction has a line of event Step.
type Line struct {
	Event   string
	Send    string // names the attempt to send Request, once
	Request string
	// At is the time on a clock of the machine that cannot be set: before sending, and after all
	// answers.
	At int64 `json:",omitempty"`

	// Of event Send.
	Kind  string `json:",omitempty"`
	Steps []Step `json:",omitempty"`
	// Atomic: the steps take effect together or not at all.
	Atomic bool `json:",omitempty"`
	// Keyed: it may be sent more than once, and takes effect once.
	Keyed bool `json:",omitempty"`
	// Reads means that it is not run again; a pending one is decided later.
	Reads bool `json:",omitempty"`
	// Turns marks a compensable group, with steps on accounts. Late marks one that may be
	// compensated even without a refusal.
	Turns bool `json:",omitempty"`
	Late  bool `json:",omitempty"`

	// Logging is the time of writing its entry, if not before sending.
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

// Step is one write of a request: it adds n to an account of a target. An applied step leaves a row
// in the table effect with its name; see EffectName. With an Op it changes a register of that id;
// see OpSet.
type Step struct {
	Op      string `json:",omitempty"`
	Target  string
	Account int64
	N       int64
	// Refuse: the target's constraint forbids it.
	Refuse bool `json:",omitempty"`
}

// undoName is the effect name of a step's compensation.
func undoName(request string, step int) string { return EffectName(request, step) + "/undo" }

// EffectName is how a step is called in the table effect.
func EffectName(request string, step int) string { return fmt.Sprintf("%s/%d", request, step) }

// Outcome is a caller's result.
type Outcome string

// Outcomes.
const (
	Delivered Outcome = "delivered"
	Pending   Outcome = "pending"
	// Doubt is pending, without certainty that the log was written.
	Doubt Outcome = "doubt"
	// Refused is a permanent error of the database.
	Refused   Outcome = "refused"
	NotLogged Outcome = "not logged"
	// Unknown is an error without certainty about the write or its log entry.
	Unknown Outcome = "unknown"
	// Failed is an error without a commit: of connecting, of preparing, of the caller's own
	// context, or in a local transaction.
	Failed Outcome = "failed"
	// Undone means a compensated group.
	Undone Outcome = "undone"
)

// ReadJournals reads all journals of a directory. It ignores a last line left unfinished by a
// killed process.
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

// compact shares the frequent words of lines: there are millions of lines.
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
