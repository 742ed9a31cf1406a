package acceptance

import (
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestDDLCommitsTheUnitOnMySQL(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.must(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	r.wantBalances(10) // committed on the way
	r.wantNoLog()
	if n := r.counters.Delivered.Load(); n != 1 {
		t.Errorf("%d units were counted as delivered, want the one that the DDL committed", n)
	}
	r.must(tx, setBalance, 20, 2) // on its own now
	if n := r.counters.Delivered.Load(); n != 2 {
		t.Errorf("%d writes were counted as delivered, want the one behind the DDL on its own too", n)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.wantBalances(10, 20)
	r.wantNoLog()
}

func TestWriteAfterDDLIsLoggedOnItsOwn(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.must(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	p.CutBefore(testproxy.MySQLExecute)
	wantPending(t, r.fails(tx, setBalance, 20, 2))
	if u := r.wantOneLog(); len(u.Statements) != 1 {
		t.Errorf("the unit has %d statements, want the one behind the DDL", len(u.Statements))
	}
	_ = tx.Rollback()
	r.runOnce()
	r.wantBalances(10, 20)
	r.wantNoLog()
}

func TestDDLThatFailsCommitsAllTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	var my *mysql.MySQLError
	if err := r.fails(tx, "CREATE TABLE account (id INT)"); !errors.As(err, &my) || my.Number != 1050 {
		t.Errorf("the error is %v, want the driver's own: table exists", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.wantBalances(10)
	r.wantNoLog()
}

func TestASyntaxErrorInDDLEndsNothing(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	var my *mysql.MySQLError
	if err := r.fails(tx, "CREATE TABLE (((("); !errors.As(err, &my) || my.Number != 1064 {
		t.Errorf("the error is %v, want the driver's own: syntax", err)
	}
	r.wantBalances(1)
	r.wantNoLog()
	r.must(tx, setBalance, 20, 2)
	r.wantBalances(1, 2)
	p.CutBefore(testproxy.Text("COMMIT"))
	wantPending(t, tx.Commit())
	if u := r.wantOneLog(); len(u.Statements) != 2 {
		t.Errorf("the unit has %d statements, want both", len(u.Statements))
	}
}

// A DDL with a lost answer is not delivered: only the unit committed by it is.
func TestUnansweredDDLIsNotASuccess(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t))
	r.account(1)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	p.CutBefore(testproxy.Text("CREATE TABLE"))
	err := r.fails(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	if errors.Is(err, bedsql.ErrPending) {
		t.Errorf("the error is %v, but the unit is delivered and nobody will create the table", err)
	}
	r.wantBalances(10)
	r.wantNoLog()
	// The session is gone: nothing of this transaction is written any more.
	r.fails(tx, setBalance, 11, 1)
	if err := tx.Commit(); err == nil {
		t.Error("Commit succeeded")
	}
	r.wantBalances(10)
}

func TestUnloggableUnitBeforeDDLEndsTheTransaction(t *testing.T) {
	t.Parallel()
	r, p := newRigLogBehindProxy(t, testdb.MySQL(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	p.Refuse()
	p.CutAll()
	if err := r.fails(tx, "CREATE TABLE other (id INT PRIMARY KEY)"); !errors.Is(err, bedsql.ErrNotLogged) {
		t.Errorf("the error is %v, want ErrNotLogged", err)
	}
	p.Accept()
	// The session is outside of any transaction: a write now would be committed on its own.
	if err := r.fails(tx, setBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("Commit succeeded though nothing was committed")
	}
	r.wantBalances(1, 2)
	r.must(r.wrapped, setBalance, 11, 1)
	r.wantBalances(11, 2)
	r.wantNoLog()
}
