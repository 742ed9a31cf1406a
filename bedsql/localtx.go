package bedsql

import (
	"fmt"
	"slices"

	"github.com/bedsql/bed/txlog"
)

// localTx is what is known of the local transaction that is open on a connection:
// the unit that will be logged when it commits.
type localTx struct {
	c *Conn
	// under is the scope in which it was begun.
	under scope
	// soft is the soft transaction that it belongs to.
	soft *SoftTransaction
	// unlogged says that it was begun under Skip or on a pinned connection.
	unlogged   bool
	statements []txlog.Statement
	bytes      int
	// why the unit must not be run again; empty if it may.
	notReplayable string
	// read: a query ran, whose rows a later write may carry.
	read bool
	// readsLock: every query locks what it reads.
	readsLock bool
	// generated says that a write made an id, which a later one may carry.
	generated  bool
	savepoints []savepoint
	// guarded says that the guard found something in the write that runs now.
	guarded bool
	// receipt: its COMMIT leaves a receipt.
	receipt bool
	// keyed is what it keeps under an idempotency key.
	keyed *keyedTx
	// readOnly says that it was begun read-only under an idempotency key, and
	// leaves no receipt.
	readOnly bool
	// moved says that unqualified names may lead elsewhere in its session than in
	// others.
	moved bool
	// bySavepoint says that its first savepoint began it, and ends it.
	bySavepoint bool
	// lost is the error with which the database rolled the transaction back
	// by itself.
	lost error
	// aborted says that PostgreSQL takes nothing but ROLLBACK any more, and
	// answers COMMIT with one.
	aborted bool
}

// savepoint remembers how long the list was.
type savepoint struct {
	name  string
	len   int
	bytes int
}

func (t *localTx) unreplayable(why string) {
	if t.notReplayable == "" {
		t.notReplayable = why
	}
}

// replays reports whether, as far as is known, it would be run again with one
// more write.
func (t *localTx) replays() bool {
	return t.notReplayable == "" && !t.read && !t.generated
}

// add appends a write that ran.
func (t *localTx) add(s txlog.Statement, cfg *Config) {
	if t.read {
		t.unreplayable("it read before it wrote")
	}
	if t.generated {
		t.unreplayable("a statement after an INSERT may carry the id that the INSERT generated")
	}
	size := len(s.SQL) + len(s.Params)
	if len(t.statements) >= cfg.MaxUnitStatements {
		t.unreplayable(fmt.Sprintf("it has more than %d statements, of which the first are kept here", cfg.MaxUnitStatements))
		return
	}
	if t.bytes+size > cfg.MaxUnitBytes && len(t.statements) > 0 {
		t.unreplayable(fmt.Sprintf("its statements are larger than %d bytes, the first are kept here", cfg.MaxUnitBytes))
		return
	}
	t.statements = append(t.statements, s)
	t.bytes += size
}

// move notes that a setting was changed for the rest of the transaction.
func (t *localTx) move() {
	t.unreplayable("it changed a setting")
	t.moved = true
}

func (t *localTx) save(name string) {
	t.savepoints = append(t.savepoints, savepoint{name, len(t.statements), t.bytes})
}

// find gives the index of the newest savepoint of that name, or -1.
func (t *localTx) find(name string) int {
	for i, v := range slices.Backward(t.savepoints) {
		if v.name == name {
			return i
		}
	}
	return -1
}

// rollbackTo truncates the list. The savepoint itself stays, as in every
// database.
func (t *localTx) rollbackTo(name string) {
	t.aborted = false
	i := t.find(name)
	if i < 0 {
		// The database knows it and the list does not: the list cannot be trusted
		// any more.
		t.unreplayable("it rolled back to a savepoint that was not seen being set")
		return
	}
	sp := t.savepoints[i]
	t.statements, t.bytes = t.statements[:sp.len], sp.bytes
	t.savepoints = t.savepoints[:i+1]
	t.aborted = false
}

// endsWith reports whether releasing the savepoint commits the transaction.
func (t *localTx) endsWith(name string) bool {
	return t.bySavepoint && t.find(name) == 0
}

func (t *localTx) releaseSavepoint(name string) {
	if i := t.find(name); i >= 0 {
		t.savepoints = t.savepoints[:i]
	}
}
