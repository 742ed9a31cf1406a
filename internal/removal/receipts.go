package removal

import (
	"context"
	"time"
)

const (
	// EraseWithin is how long a receipt waits for others.
	EraseWithin = 200 * time.Millisecond
	// eraseMost is how many receipts may wait. What cannot be erased stays for its
	// retention.
	eraseMost = 1 << 14
)

// Settings are those under which receipts are found, as their units have them.
type Settings struct {
	Text  string
	Older bool
}

// spent has a receipt erased together with others.
func (q *Queue) spent(in Settings, receipt string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.receipts[in]) >= eraseMost {
		return
	}
	q.receipts[in] = append(q.receipts[in], receipt)
	if q.erasing == nil && q.cfg.HoldAt == 0 && !q.cfg.EraseInTurn && q.open.Err() == nil {
		q.work.Add(1)
		q.erasing = time.AfterFunc(EraseWithin, func() {
			defer q.work.Done()
			ctx, cancel := context.WithTimeout(q.ctx, q.cfg.Timeout)
			defer cancel()
			q.erase(ctx)
		})
	}
}

// erase erases what waits.
func (q *Queue) erase(ctx context.Context) {
	q.mu.Lock()
	receipts := q.receipts
	q.receipts, q.erasing = map[Settings][]string{}, nil
	q.mu.Unlock()
	for in, ids := range receipts {
		if q.cfg.Erase != nil {
			q.cfg.Erase(ctx, in, ids)
		}
	}
}

// Receipts takes receipts that are to be erased, if they are at least so many:
// for a database where that is done between the callers' own writes.
func (q *Queue) Receipts(least int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	for in, ids := range q.receipts {
		if len(ids) >= least {
			delete(q.receipts, in)
			return ids
		}
	}
	return nil
}
