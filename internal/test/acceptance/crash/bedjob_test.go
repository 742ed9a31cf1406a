package crash

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// bedJob runs one command of bed-job as a process of its own.
func bedJob(t testing.TB, file string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	p := rig.Start(t, "bed-job", append(args, "-c", file)...)
	status = p.Status()
	lines, _ := p.Said()
	return status, p.Out.String(), strings.Join(lines, "\n")
}

// wantBedJob runs a command that must end with a status and print texts.
func wantBedJob(t testing.TB, file string, status int, texts []string, args ...string) string {
	t.Helper()
	got, stdout, stderr := bedJob(t, file, args...)
	if got != status {
		t.Fatalf("bed-job %v: status %d, want %d:\n%s\n%s", args, got, status, stdout, stderr)
	}
	for _, text := range texts {
		if !strings.Contains(stdout+stderr, text) {
			t.Errorf("bed-job %v does not say %q:\n%s\n%s", args, text, stdout, stderr)
		}
	}
	return stdout
}

// wantUnits lists the log by the command and checks its units' states.
func wantUnits(t testing.TB, file string, states map[string]string) {
	t.Helper()
	var units []struct{ ID, State, DataSource string }
	if err := json.Unmarshal([]byte(wantBedJob(t, file, 0, nil, "list", "-o", "json")), &units); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, u := range units {
		got[u.ID] = u.State
	}
	if len(got) != len(states) {
		t.Errorf("the log holds %v, want %v", got, states)
	}
	for id, state := range states {
		if got[id] != state {
			t.Errorf("%s is %q, want %s", id, got[id], state)
		}
	}
}

func TestBedJobServesRealDatabases(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1, 2)
		file := r.JobFile("maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0")
		source := rig.DataSourceOf(t, r.DB)
		wantBedJob(t, file, 0, []string{"The log is empty."}, "stats")
		wantBedJob(t, file, 0, []string{"claimed 0"}, "run", "--once")

		// During an outage, two of four writes will be delivered later (one is a local transaction
		// with a lost COMMIT), and two refused.
		tx := r.Begin()
		r.Must(tx, rig.SetBalance, 10, 1)
		r.Must(tx, rig.SetBalance, 20, 2)
		p.CutBefore(testproxy.Commit)
		unit := rig.WantPending(t, tx.Commit()).EntryID
		p.Refuse()
		p.CutAll()
		insert := rig.WantPending(t, r.Fails(r.Wrapped, "INSERT INTO account VALUES (?, ?)", 3, 31415926)).EntryID
		retried := rig.WantPending(t, r.Fails(r.Wrapped, "INSERT INTO ledger VALUES (?)", 27182818)).EntryID
		discarded := rig.WantPending(t, r.Fails(r.Wrapped, "UPDATE nowhere SET x = ?", 1)).EntryID

		waiting := map[string]string{unit: "waiting", insert: "waiting", retried: "waiting", discarded: "waiting"}
		wantUnits(t, file, waiting)
		wantBedJob(t, file, 0, []string{source, "UPDATE account SET balance = ", "(1 of 2) UPDATE", "INSERT INTO ledger"}, "list")
		wantBedJob(t, file, 0, []string{source}, "stats")
		whole := wantBedJob(t, file, 0, []string{insert, source, "waiting", "INSERT INTO account VALUES"}, "show", insert)
		if strings.Contains(whole, "31415926") {
			t.Errorf("show prints a parameter that nobody asked for:\n%s", whole)
		}
		wantBedJob(t, file, 0, []string{"31415926"}, "show", insert, "--show-parameters")
		wantBedJob(t, file, 0, []string{"SQL 1 of 2", "SQL 2 of 2", "In doubt"}, "show", unit)

		// The database is still down: the round says so, and counts no try.
		wantBedJob(t, file, 1, []string{"data source " + source + ": unreachable"}, "run", "--once")
		wantUnits(t, file, waiting)
		p.Accept()
		wantBedJob(t, file, 0, []string{"claimed 4, delivered 2 (assumed 0), failed 0, parked 2,"}, "run", "--once")
		r.WantBalances(10, 20, 31415926)
		wantUnits(t, file, map[string]string{retried: "parked", discarded: "parked"})
		wantBedJob(t, file, 0, []string{"parked", "ledger", "Tries:", "Last error:"}, "show", retried)
		var stats []struct {
			DataSource              string
			Waiting, Leased, Parked int
		}
		if err := json.Unmarshal([]byte(wantBedJob(t, file, 0, nil, "stats", "-o", "json")), &stats); err != nil {
			t.Fatal(err)
		}
		if len(stats) != 1 || stats[0].DataSource != source || stats[0].Parked != 2 || stats[0].Waiting+stats[0].Leased != 0 {
			t.Errorf("stats: %+v", stats)
		}

		// An operator makes room for one and abandons the other.
		r.Exec("CREATE TABLE ledger (n INT PRIMARY KEY)")
		wantBedJob(t, file, 0, []string{"claimed 0"}, "run", "--once")
		wantBedJob(t, file, 2, []string{"--yes"}, "discard", discarded, "--reason", "the order was cancelled")
		wantBedJob(t, file, 0, []string{discarded + ": discarded"}, "discard", discarded, "--yes", "--reason", "the order was cancelled")
		wantBedJob(t, file, 0, []string{retried + ": due now"}, "retry", retried)
		wantUnits(t, file, map[string]string{retried: "waiting"})
		wantBedJob(t, file, 1, []string{"the log holds no such id"}, "retry", discarded)
		wantBedJob(t, file, 0, []string{"claimed 1, delivered 1"}, "run", "--once")
		if n := r.Count("SELECT COUNT(*) FROM ledger WHERE n = 27182818"); n != 1 {
			t.Error("what was retried is not applied")
		}
		r.WantNoLog()
	})
}

func TestBedJobLeavesLeasedEntriesAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		file := r.JobFile("maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0")
		u := &entry.Unit{ID: entry.NewID(), DataSource: rig.DataSourceOf(t, r.DB), Statements: []entry.Statement{{SQL: "UPDATE account SET balance = 2"}}}
		if err := r.Storage.Add(t.Context(), time.Hour, u); err != nil {
			t.Fatal(err)
		}
		wantBedJob(t, file, 0, []string{"claimed 0"}, "run", "--once")
		wantUnits(t, file, map[string]string{u.ID: "leased"})
		wantBedJob(t, file, 1, []string{"it is being delivered at this moment"}, "retry", u.ID)
		wantBedJob(t, file, 1, []string{"it is being delivered at this moment"}, "discard", u.ID, "--yes", "--reason", "a test")
		r.WantBalances(1)
		r.WantOneLog()
	})
}

func TestBedJobDeliversToEveryKindOfDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, log testdb.DB) {
		rigs := map[string]*rig.Rig{}
		targets := map[string]testdb.DB{}
		for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres, testdb.SQLite} {
			db := fresh(t)
			r := rig.NewWithLog(t, db, log, rig.NoSyncRetry)
			r.Account(1)
			rigs[db.Driver], targets[rig.DataSourceOf(t, db)] = r, db
		}
		for _, r := range rigs {
			free := r.BlockRow(1)
			rig.WantPending(t, r.Fails(r.Open(rig.Impatient(r.DB).DSN), rig.SetBalance, 2, 1))
			free()
		}
		file := rig.JobFile(t, log, targets, "maxDeliveryTryDelayMillis: 0")
		_, out, errs := bedJob(t, file, "run", "--once")
		if !strings.Contains(out, "claimed 3, delivered 3 (assumed 0), failed 0") {
			t.Errorf("the round: %s\n%s", out, errs)
		}
		for _, r := range rigs {
			r.WantBalances(2)
			r.WantNoLog()
		}
	})
}

func TestBedJobOutlivesOutagesOfLogAndTarget(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, targetProxy := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1)
		logProxy := testproxy.New(t, r.LogDB.Addr())
		file := rig.JobFile(t, r.LogDB.Via(logProxy.Addr()), map[string]testdb.DB{rig.DataSourceOf(t, r.DB): r.DB},
			`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0`)
		p := rig.Start(t, "bed-job", "run", "-c", file)
		p.Until("bed-job is running")

		targetProxy.Refuse()
		targetProxy.CutAll()
		rig.WantPending(t, r.Fails(r.Wrapped, rig.SetBalance, 2, 1))
		p.Until("the data source is unreachable")
		logProxy.Refuse()
		logProxy.CutAll()
		p.Until("the round is not complete")
		targetProxy.Accept()
		r.WantBalances(1)
		logProxy.Accept()
		p.Until("the data source is reachable again")
		p.Until("delivered 1")
		if status := p.Terminate(); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		r.WantBalances(2)
		r.WantNoLog()
	})
}
