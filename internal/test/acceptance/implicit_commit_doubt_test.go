package acceptance

import (
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// The DDL never reaches the server, whose session then cannot be asked either.
func TestUnknownImplicitCommitIsNotDelivered(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t), exactlyOnce)
	r.receiptTable()
	r.account(100)
	tx := r.begin()
	r.must(tx, addOne)
	p.Answer(testproxy.Text("CREATE TABLE more"), testproxy.MySQLError(31000, "HY000", "something broke"))
	struck := p.CutBefore(testproxy.Text("@@in_transaction"))
	_ = r.fails(tx, "CREATE TABLE more (id INT)")
	testproxy.Await(t, struck)
	r.drain(r.job())
	r.wantBalances(101)
	r.wantNoLog()
}
