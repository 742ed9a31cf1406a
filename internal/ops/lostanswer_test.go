package ops_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// commit is the COMMIT of either server.
func commit(message []byte) bool {
	return bytes.HasPrefix(message[min(5, len(message)):], []byte("COMMIT")) || bytes.Contains(message, []byte("commit\x00"))
}

// After an error an operator would repeat the decision, or make another. So its real outcome is
// found out, and the decision is made and audited once.
func TestDecisionWithUnansweredCommitIsReportedDone(t *testing.T) {
	t.Parallel()
	for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres} {
		db := fresh(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			p := testproxy.New(t, db.Addr())
			r := newRig(t, db.Via(p.Addr()))
			for _, c := range []struct {
				what string
				cut  func(func([]byte) bool) <-chan struct{}
			}{{"done", p.CutAfter}, {"never sent", p.CutBefore}} {
				one := r.park(t, r.write(t, "orders", "UPDATE a"), "no")
				r.park(t, r.write(t, "orders", "UPDATE b"), "both")
				r.park(t, r.write(t, "orders", "UPDATE b"), "both")
				both := r.selected(t, ops.Filter{Text: "both"}, 2)
				by := ops.By{Who: c.what, Reason: "because"}
				for _, d := range []struct {
					what   string
					decide func() error
				}{
					{"pause", func() error { return r.Control(t.Context(), ops.Pause, "orders", 0, by) }},
					{"discard", func() error { return r.Act(t.Context(), ops.Discard, one.ID, by) }},
					{"bulk", func() error {
						done, err := r.ActAll(t.Context(), ops.Discard, both, by)
						if len(done.Changed) != 2 || done.Gone > 0 {
							t.Errorf("%s: reported as %+v, want both discarded", c.what, done)
						}
						return err
					}},
				} {
					struck := c.cut(commit)
					if err := d.decide(); err != nil {
						t.Fatalf("%s, whose COMMIT was %s, is reported as %v", d.what, c.what, err)
					}
					testproxy.Await(t, struck)
				}
				if all := r.list(t, ops.Filter{}, 0); len(all) != 0 {
					t.Errorf("%s: left are %v", c.what, all)
				}
				if _, _, paused, err := logdb.Journal(r.log).Reserve(t.Context(), "orders", 0); err != nil || !paused.Paused {
					t.Errorf("%s: got %+v, %v", c.what, paused, err)
				}
				audit, err := r.Audit(t.Context(), ops.Page{})
				must(t, err)
				n := 0
				for _, record := range audit.Records {
					if record.Who == c.what {
						n++
					}
				}
				if n != 3 {
					t.Errorf("%s: %d records in the audit, want 3: %+v", c.what, n, audit.Records)
				}
			}
		})
	}
}

// It may have been done: "it failed" would be a guess.
func TestUnknownDecisionIsNotReportedAsFailed(t *testing.T) {
	t.Parallel()
	for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres} {
		db := fresh(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			p := testproxy.New(t, db.Addr())
			log, err := txlog.Open(t.Context(), db.Driver, db.Via(p.Addr()).DSN, txlog.WithGrace(50*time.Millisecond), txlog.WithoutActivity())
			must(t, err)
			t.Cleanup(func() { _ = log.Close() })
			s, err := ops.New(log, ops.Config{})
			must(t, err)
			r := &rig{s, log, db}
			u := r.park(t, r.write(t, "orders", "UPDATE a"), "no")
			for _, c := range []struct {
				what   string
				decide func(context.Context) error
			}{
				{"retry", func(ctx context.Context) error { return r.Act(ctx, ops.Retry, u.ID, ann) }},
				{"pause", func(ctx context.Context) error { return r.Control(ctx, ops.Pause, "orders", 0, ann) }},
			} {
				must(t, r.Ping(t.Context()))
				struck := p.CutAfter(commit)
				p.Refuse()
				wantError(t, c.what+" without an answer", c.decide(testproxy.Until(t, struck, time.Second)), txlog.ErrUnconfirmed)
				testproxy.Await(t, struck)
				p.Accept()
			}
			wantAudit(t, r, "ann pause orders 0 because", fmt.Sprintf("ann retry %s 1 because", u.ID))
		})
	}
}
