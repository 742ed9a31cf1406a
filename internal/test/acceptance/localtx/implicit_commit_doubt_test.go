package localtx

import (
	"testing"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// The DDL never reaches the server, whose session then cannot be asked either.
func TestUnknownImplicitCommitIsNotDelivered(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t), rig.ExactlyOnce)
	r.ReceiptTable()
	r.Account(100)
	tx := r.Begin()
	r.Must(tx, rig.AddOne)
	p.Answer(testproxy.Text("CREATE TABLE more"), testproxy.MySQLError(31000, "HY000", "something broke"))
	struck := p.CutBefore(testproxy.Text("@@in_transaction"))
	_ = r.Fails(tx, "CREATE TABLE more (id INT)")
	testproxy.Await(t, struck)
	r.Drain(r.Job())
	r.WantBalances(101)
	r.WantNoLog()
}
