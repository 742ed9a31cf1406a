package ops

import (
	"context"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/journal"
)

// Record is one of the audit.
type Record struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Who  string    `json:"who"`
	// Action is what was done.
	Action Action `json:"action"`
	// What is the entry's id, the data source's name, or the filter as JSON.
	What   string `json:"what"`
	Count  int    `json:"count"`
	Reason string `json:"reason"`
	// Log is the log that holds it, if a console shows several logs together.
	Log string `json:"log,omitempty"`
}

// Audit is a page of records, the newest first.
type Audit struct {
	Records []Record `json:"records"`
	Next    string   `json:"next,omitempty"`
}

// Audit gives a page of what was done.
func (s *reader) Audit(ctx context.Context, p Page) (*Audit, error) {
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	all, err := s.journal.ReadAudit(ctx, p.After, limit+1)
	if errors.Is(err, journal.ErrOff) {
		return nil, noTables(err)
	} else if err != nil {
		return nil, s.fault(err)
	}
	out := &Audit{Records: []Record{}}
	if len(all) > limit {
		all = all[:limit]
		out.Next = all[limit-1].ID
	}
	for _, r := range all {
		out.Records = append(out.Records, Record{ID: r.ID, Time: r.At.UTC(), Who: r.Who, Action: Action(r.Action), What: r.What, Count: r.Units, Reason: r.Reason})
	}
	return out, nil
}
