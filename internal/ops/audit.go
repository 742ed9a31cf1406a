package ops

import (
	"context"

	"github.com/bedsql/bed/internal/journal"
)

// Record is one of the audit.
type Record = journal.Record

// Audit is a page of records, the newest first.
type Audit struct {
	Records []Record `json:"records"`
	Next    string   `json:"next,omitempty"`
}

// Audit gives a page of what was done, without values: the parameters that were amended are masked.
func (s *reader) Audit(ctx context.Context, p Page) (*Audit, error) {
	a, err := s.records(ctx, p)
	if err != nil {
		return nil, err
	}
	for i, r := range a.Records {
		a.Records[i] = masked(r)
	}
	return a, nil
}

// RevealAudit is Audit with the values. It is audited before anything is given.
func (s *reader) RevealAudit(ctx context.Context, p Page, by By) (*Audit, error) {
	if err := by.Check(Reveal); err != nil {
		return nil, err
	}
	if err := s.journal.AddAudit(ctx, by.record(Reveal, "audit", 0)); err != nil {
		return nil, noTables(s.fault(err))
	}
	return s.records(ctx, p)
}

func (s *reader) records(ctx context.Context, p Page) (*Audit, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	all, err := s.journal.ReadAudit(ctx, p.After, p.Limit+1)
	if err != nil {
		return nil, noTables(s.fault(err))
	}
	out := &Audit{Records: append([]Record{}, all...)}
	if len(all) > p.Limit {
		out.Records = out.Records[:p.Limit]
		out.Next = all[p.Limit-1].ID
	}
	return out, nil
}
