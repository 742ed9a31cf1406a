package ops_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestTheOverviewTellsHowEachDataSourceIs(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		first := r.wait(t, r.write(t, "orders", "UPDATE a", "UPDATE b"), "no")
		for range 3 {
			r.wait(t, r.write(t, "orders", "UPDATE a"), "no")
			r.write(t, "orders", "UPDATE a", "UPDATE b")
		}
		parked := r.park(t, r.write(t, "orders", "UPDATE a"), "no")
		r.park(t, r.write(t, "users", "UPDATE a", "UPDATE b"), "no")
		j := logdb.Journal(r.log)
		must(t, j.Beat(t.Context(), "a", "job on a", time.Minute))
		must(t, j.Beat(t.Context(), "b", "job on b", time.Minute))
		must(t, j.Beat(t.Context(), "c", "job on c", -time.Minute))
		must(t, j.See(t.Context(), "orders", "a", "job on a", ""))
		must(t, j.See(t.Context(), "orders", "b", "job on b", "no route to host"))
		must(t, j.See(t.Context(), "users", "a", "job on a", ""))
		must(t, j.See(t.Context(), "users", "c", "job on c", "gone"))
		j.Tally("orders").Count(journal.AtOnce, 10)
		j.Tally("idle").Count(journal.Refused, 1)
		must(t, j.Flush(t.Context()))

		o, err := r.Overview(t.Context(), ops.OverviewOptions{Hours: 1})
		must(t, err)
		var names []string
		for _, d := range o.DataSources {
			names = append(names, d.Name)
		}
		if !slices.Equal(names, []string{"idle", "orders", "users"}) || len(o.Jobs) != 2 || len(o.Off) > 0 || time.Since(o.At).Abs() > time.Hour {
			t.Fatalf("got %+v", o)
		}
		d := o.DataSources[1]
		if d.Waiting != 4 || d.Leased != 3 || d.Parked != 1 || d.More != nil || d.OldestID != first.ID ||
			!d.Oldest.Equal(r.get(t, first.ID).CreatedAt) || !d.OldestParked.Equal(r.get(t, parked.ID).CreatedAt) {
			t.Errorf("got %+v", d)
		}
		if d.Reachable == nil || *d.Reachable || d.ReachError != "no route to host" || d.Since == nil {
			t.Errorf("got %+v: one of its jobs cannot reach it", d)
		}
		if d = o.DataSources[2]; d.Reachable == nil || !*d.Reachable || d.Parked != 1 || d.Oldest != nil {
			t.Errorf("got %+v: the job that could not reach it is gone", d)
		}
		if d = o.DataSources[0]; d.Reachable != nil || d.Waiting+d.Leased+d.Parked != 0 {
			t.Errorf("got %+v", d)
		}
		if len(o.Minutes) != 2 || o.Minutes[1].AtOnce != 10 || o.Minutes[0].Refused != 1 {
			t.Errorf("the minutes are %+v", o.Minutes)
		}
		if o, err = r.Overview(t.Context(), ops.OverviewOptions{Cap: 2}); err != nil || o.Minutes == nil || len(o.Minutes) > 0 {
			t.Fatalf("got %+v, %v", o, err)
		}
		if d = o.DataSources[1]; d.Waiting != 2 || d.Leased != 2 || !slices.Contains(d.More, ops.Waiting) || !slices.Contains(d.More, ops.Leased) || d.OldestID != first.ID {
			t.Errorf("got %+v, want no more than 2 of each counted", d)
		}
		if o, err = r.Overview(t.Context(), ops.OverviewOptions{Cap: -1}); err != nil || o.DataSources[1].Waiting != 4 || o.DataSources[1].More != nil {
			t.Errorf("got %+v, %v", o, err)
		}
	})
}

// A week of many data sources is more than was once read at a time: the newest
// minutes went missing, and with them the rates.
func TestRatesCoverTheLastMinutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t))
	tx, err := logdb.Journal(r.log).DB().BeginTx(t.Context(), nil)
	must(t, err)
	now := time.Now().Truncate(time.Minute)
	const minutes, inOneInsert = 7 * 24 * 60, 60
	for from := 0; from < minutes; from += inOneInsert {
		var rows []string
		for m := from; m < from+inOneInsert; m++ {
			for ds := range 12 {
				rows = append(rows, fmt.Sprintf("(%d, 'orders_%02d', 60, 0, 0, 0, 0, 0)", now.Add(-time.Duration(m)*time.Minute).UnixMilli(), ds))
			}
		}
		_, err := tx.ExecContext(t.Context(), "INSERT INTO bed_activity (minute, data_source, at_once, sync_retry, async_job, pending, parked, refused) VALUES "+strings.Join(rows, ","))
		must(t, err)
	}
	must(t, tx.Commit())
	for _, hours := range []int{6, 168} {
		o, err := r.Overview(t.Context(), ops.OverviewOptions{Hours: hours})
		must(t, err)
		if len(o.DataSources) != 12 {
			t.Fatalf("%d data sources", len(o.DataSources))
		}
		for _, d := range o.DataSources {
			if d.Rates.AtOnce < 30 {
				t.Errorf("%d hours: %s has %v writes a minute, want 60", hours, d.Name, d.Rates.AtOnce)
			}
		}
	}
}

// An address is the same for all entries, whatever their parameters.
func TestErrorKindCountEqualsItsEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t))
	for i := range 12 {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{
			{SQL: "UPDATE t SET n = ?", Params: fmt.Sprintf("[%d]", 1+i%2)},
		}}
		must(t, r.log.Add(t.Context(), time.Hour, u))
		r.wait(t, u, "dial tcp 10.0.0.1:3306: connect: connection refused")
	}
	all, err := r.Kinds(t.Context(), ops.Filter{})
	must(t, err)
	if len(all.Kinds) != 1 || all.Kinds[0].Count != 12 {
		t.Fatalf("the kinds are %+v", all.Kinds)
	}
	n, err := r.Count(t.Context(), ops.Filter{Kind: all.Kinds[0].Key}, -1)
	must(t, err)
	if n.N != 12 {
		t.Errorf("the link of 12 entries finds %d", n.N)
	}
}
