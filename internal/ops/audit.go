package ops

import (
	"context"
	"encoding/json"
	"time"

	"github.com/bedsql/bed/internal/journal"
)

// Record is an audit record.
type Record = journal.Record

// Audit is a page of records, the newest first.
type Audit struct {
	Records []Record `json:"records"`
	Next    string   `json:"next,omitempty"`
}

// Bulk is the audit record of a bulk action.
type Bulk struct {
	Filter
	OlderThan string `json:"olderThan,omitempty"`
	// Code belongs to Kind, the text of the error.
	Code string `json:"code,omitempty"`
	// Values reports that Text was searched for among values, and may be one.
	Values bool `json:"values,omitempty"`
	// Until is the time of the selection by the log's clock, Counted its size; Gone and Left come
	// from Done.
	Until   time.Time `json:"until"`
	Counted int       `json:"counted"`
	Gone    int       `json:"gone,omitempty"`
	Left    int       `json:"left,omitempty"`
	// IDs are the changed entries, at most keptIDs.
	IDs []string `json:"ids,omitempty"`
}

// keptIDs bounds the ids of a record, and so the entries amended at once.
const keptIDs = 10_000

// view makes the record of a bulk action.
func (sel *Selection) view(done Done) Bulk {
	f := sel.Filter
	v := Bulk{Filter: f, Values: f.Reveal && f.Text != "", Until: sel.At, Counted: len(sel.IDs), Gone: done.Gone, Left: done.Left,
		IDs: done.Changed[:min(len(done.Changed), keptIDs)]}
	if f.OlderThan > 0 {
		v.OlderThan = f.OlderThan.String()
	}
	if k, err := readKind(f.Kind); err == nil {
		v.Kind, v.Code, v.DataSource = k.words(), k.Code, k.DataSource
	}
	return v
}

// Masked reports whether [Store.Audit] hides values of a record.
func Masked(r Record) bool {
	var v Bulk
	return r.Action == Amend || json.Unmarshal([]byte(r.What), &v) == nil && v.Values
}

// masked removes the values from a record.
func masked(r Record) Record {
	if re, ok := ReplacedBy(r); ok {
		r.What, _ = marshal(re.masked())
		return r
	}
	var v Bulk
	switch err := json.Unmarshal([]byte(r.What), &v); {
	case err == nil && v.Values:
		v.Text = mask
		r.What, _ = marshal(v)
	case r.Action == Amend: // of another version
		r.What = mask
	}
	return r
}

// Audit returns a page of the audit without values: it masks amended parameters and texts searched
// for among values.
func (s *Store) Audit(ctx context.Context, p Page) (*Audit, error) {
	a, err := s.records(ctx, p)
	if err != nil {
		return nil, err
	}
	for i, r := range a.Records {
		a.Records[i] = masked(r)
	}
	return a, nil
}

// RevealAudit is Audit with the values. It writes the audit first.
func (s *Store) RevealAudit(ctx context.Context, p Page, by By) (*Audit, error) {
	if err := by.Check(Reveal); err != nil {
		return nil, err
	}
	if err := s.journal.AddAudit(ctx, by.record(Reveal, "audit", 0)); err != nil {
		return nil, noTables(s.fault(err))
	}
	return s.records(ctx, p)
}

func (s *Store) records(ctx context.Context, p Page) (*Audit, error) {
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
