package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
)

func TestSecondReceiptWriterWaitsAndFindsIt(t *testing.T) {
	bothWays(t, secondWriterOfAReceiptWaitsAndFindsIt)
}

func secondWriterOfAReceiptWaitsAndFindsIt(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 10)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", strings.NewReplacer("(?, ?, ?, ?, 1, 1 + ?, ?, ?)", "('r', 'u', 'l', 0, 1, 1, NULL, NULL)").Replace(writeReceipt))
	done := make(chan error, 1)
	id := e.int("SELECT CONNECTION_ID()")
	go func() {
		_, _, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = n - 1"))
		done <- err
	}()
	sessions.AwaitLock(t, e.pool, id)
	must(t, other, "COMMIT")
	if err := <-done; !isReceiptDuplicate(err, "r") {
		t.Errorf("the second writer got %v", err)
	}
	e.noneOpen()
	e.is("SELECT n FROM stock", 10)
}

func TestManyWritersOfOneReceiptApplyItOnce(t *testing.T) {
	bothWays(t, manyWritersOfOneReceiptApplyItOnce)
}

func manyWritersOfOneReceiptApplyItOnce(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 0)")
	var wg sync.WaitGroup
	for range 4 {
		c := conn(t, e.pool)
		wg.Go(func() {
			for i := range 50 {
				id := fmt.Sprint("r", i)
				_, handled, err := atomicOn(t, e.d, c, receipt(id), call("UPDATE stock SET n = n + 1 WHERE id = ?", int64(1)))
				if !handled || err != nil && !isReceiptDuplicate(err, id) && !isReceiptBusy(err) {
					t.Errorf("handled %t: %v", handled, err)
				}
			}
		})
	}
	wg.Wait()
	e.is("SELECT n FROM stock", 50)
	e.is("SELECT COUNT(*) FROM bed_receipt", 50)
}

func TestReceiptWaitIsDistinguishedFromRowWait(t *testing.T) {
	bothWays(t, waitingForAReceiptIsToldFromWaitingForARow)
}

func waitingForAReceiptIsToldFromWaitingForARow(t *testing.T, way string) {
	e := receiptful(t, way+"&innodb_lock_wait_timeout=1", stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", strings.NewReplacer("(?, ?, ?, ?, 1, 1 + ?, ?, ?)", "('r', 'u', 'l', 0, 1, 1, NULL, NULL)").Replace(writeReceipt),
		"UPDATE stock SET n = 21 WHERE id = 2")
	_, err := e.atomic(receipt("r"), call("UPDATE stock SET n = n - 1 WHERE id = 1"))
	classIs(t, "the receipt is locked", err, dialect.Contention)
	if !isReceiptBusy(err) {
		t.Errorf("%v is not said to be met on the receipt", err)
	}
	e.noneOpen()
	_, err = e.atomic(receipt("r2"), call("UPDATE stock SET n = n - 1 WHERE id = 2"))
	classIs(t, "the row is locked", err, dialect.Contention)
	if isReceiptBusy(err) {
		t.Errorf("%v is said to be met on the receipt", err)
	}
	e.noneOpen()
	must(t, e.c, "BEGIN", "UPDATE stock SET n = 11 WHERE id = 1")
	_, err = e.commitWith(receipt("r"))
	if !isReceiptBusy(err) {
		t.Errorf("%v, met by a COMMIT, is not said to be met on the receipt", err)
	}
	e.noneOpen()
	must(t, other, "ROLLBACK")
	e.is("SELECT n FROM stock WHERE id = 1", 10)
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
}

func TestAtomicDeadlockIsRetryable(t *testing.T) { bothWays(t, atomicDeadlockIsRetryable) }

func atomicDeadlockIsRetryable(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30), (4, 40)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", "UPDATE stock SET n = n + 1 WHERE id >= 2")
	id := e.int("SELECT CONNECTION_ID()")
	done := make(chan error, 1)
	go func() {
		_, _, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = id + 4 WHERE id <= 2 ORDER BY id"))
		done <- err
	}()
	sessions.AwaitLock(t, e.pool, id)
	_, otherErr := other.ExecContext(context.Background(), "UPDATE stock SET n = n + 1 WHERE id = 1")
	must(t, other, "ROLLBACK")
	err := <-done
	if otherErr == nil {
		classIs(t, "deadlock", err, dialect.Contention)
		if isReceiptBusy(err) {
			t.Errorf("%v is said to be met on the receipt", err)
		}
		e.is("SELECT COUNT(*) FROM bed_receipt", 0)
	} else if err != nil {
		t.Errorf("both were refused: %v, %v", err, otherErr)
	}
	e.noneOpen()
}
