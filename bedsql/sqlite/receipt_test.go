package sqlite

import (
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestReceiptsDuplicateIsToldByItsColumn(t *testing.T) {
	t.Parallel()
	ddl, err := attempt.ReceiptSchema(name)
	if err != nil {
		t.Fatal(err)
	}
	older := strings.NewReplacer("PRIMARY KEY (id)", "CONSTRAINT bed_receipt_id UNIQUE (id)", " WITHOUT ROWID", "").Replace(ddl)
	if older == ddl || strings.Contains(older, "PRIMARY") {
		t.Fatal(older)
	}
	for name, ddl := range map[string]string{"its primary key": ddl, "the key of an older version": older} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			duplicateIsToldByItsColumn(t, ddl)
		})
	}
}

func duplicateIsToldByItsColumn(t *testing.T, ddl string) {
	db := testdb.SQLite(t).Open(t)
	const receipt = "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('r', 'u', 'l', 0, 1, 1)"
	for _, text := range []string{ddl, receipt,
		`CREATE TABLE mine ("bed_receipt.id" TEXT UNIQUE, id TEXT, b INT, UNIQUE (id, b))`, "INSERT INTO mine VALUES ('bed_receipt.id', 'bed_receipt.id', 1)",
		"CREATE TABLE bed_receipt2 (id INT PRIMARY KEY, bed_receipt INT UNIQUE)", "INSERT INTO bed_receipt2 VALUES (1, 1)",
	} {
		if _, err := db.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if _, err := db.Exec(receipt); !isReceiptDuplicate(err, "r") || classify(err) != dialect.Duplicate {
		t.Errorf("%v is not said to be the receipt's", err)
	}
	for _, text := range []string{
		"INSERT INTO mine VALUES ('bed_receipt.id', 'x', 1)", "INSERT INTO mine VALUES ('x', 'bed_receipt.id', 1)",
		"INSERT INTO bed_receipt2 VALUES (1, 2)", "INSERT INTO bed_receipt2 VALUES (2, 1)",
	} {
		_, err := db.Exec(text)
		if isReceiptDuplicate(err, "r") || classify(err) != dialect.Duplicate {
			t.Errorf("%s: %v is said to be the receipt's", text, err)
		}
	}
	if isReceiptDuplicate(errors.New("UNIQUE constraint failed: bed_receipt.id"), "r") {
		t.Error("another error is said to be the receipt's")
	}
}
