package localtx

import (
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestDDLCommitsTheUnitOnMySQL(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	r.Must(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	r.WantBalances(10) // committed on the way
	r.WantNoLog()
	if n := r.Counters.Delivered.Load(); n != 1 {
		t.Errorf("%d units were counted as delivered, want the one that the DDL committed", n)
	}
	r.Must(tx, rig.SetBalance, 20, 2) // on its own now
	if n := r.Counters.Delivered.Load(); n != 2 {
		t.Errorf("%d writes were counted as delivered, want the one behind the DDL on its own too", n)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.WantBalances(10, 20)
	r.WantNoLog()
}

func TestWriteAfterDDLIsLoggedOnItsOwn(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t), rig.NoSyncRetry)
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	r.Must(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	p.CutBefore(testproxy.MySQLExecute)
	rig.WantPending(t, r.Fails(tx, rig.SetBalance, 20, 2))
	if u := r.WantOneLog(); len(u.Statements) != 1 {
		t.Errorf("the unit has %d statements, want the one behind the DDL", len(u.Statements))
	}
	_ = tx.Rollback()
	r.RunOnce()
	r.WantBalances(10, 20)
	r.WantNoLog()
}

func TestDDLThatFailsCommitsAllTheSame(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	var my *mysql.MySQLError
	if err := r.Fails(tx, "CREATE TABLE account (id INT)"); !errors.As(err, &my) || my.Number != 1050 {
		t.Errorf("the error is %v, want the driver's own: table exists", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.WantBalances(10)
	r.WantNoLog()
}

func TestASyntaxErrorInDDLEndsNothing(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t), rig.NoSyncRetry)
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	var my *mysql.MySQLError
	if err := r.Fails(tx, "CREATE TABLE (((("); !errors.As(err, &my) || my.Number != 1064 {
		t.Errorf("the error is %v, want the driver's own: syntax", err)
	}
	r.WantBalances(1)
	r.WantNoLog()
	r.Must(tx, rig.SetBalance, 20, 2)
	r.WantBalances(1, 2)
	p.CutBefore(testproxy.Commit)
	rig.WantPending(t, tx.Commit())
	if u := r.WantOneLog(); len(u.Statements) != 2 {
		t.Errorf("the unit has %d statements, want both", len(u.Statements))
	}
}

// A DDL with a lost answer is not delivered: only the unit committed by it is.
func TestUnansweredDDLIsNotASuccess(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t))
	r.Account(1)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	p.CutBefore(testproxy.Text("CREATE TABLE"))
	err := r.Fails(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	if errors.Is(err, bedsql.ErrPending) {
		t.Errorf("the error is %v, but the unit is delivered and nobody will create the table", err)
	}
	r.WantBalances(10)
	r.WantNoLog()
	// The session is gone: nothing of this transaction is written any more.
	r.Fails(tx, rig.SetBalance, 11, 1)
	if err := tx.Commit(); err == nil {
		t.Error("Commit succeeded")
	}
	r.WantBalances(10)
}

func TestUnloggableUnitBeforeDDLEndsTheTransaction(t *testing.T) {
	t.Parallel()
	r, p := rig.NewLogBehindProxy(t, testdb.MySQL(t))
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	p.Refuse()
	p.CutAll()
	if err := r.Fails(tx, "CREATE TABLE other (id INT PRIMARY KEY)"); !errors.Is(err, bedsql.ErrNotLogged) {
		t.Errorf("the error is %v, want ErrNotLogged", err)
	}
	p.Accept()
	// The session is outside of any transaction: a write now would be committed on its own.
	if err := r.Fails(tx, rig.SetBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("Commit succeeded though nothing was committed")
	}
	r.WantBalances(1, 2)
	r.Must(r.Wrapped, rig.SetBalance, 11, 1)
	r.WantBalances(11, 2)
	r.WantNoLog()
}
