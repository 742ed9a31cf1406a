package mappers

import (
	"errors"
	"testing"

	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestGormUsesReturningOnMariaDBUnlessDisabled(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Exec("CREATE TABLE letters (id VARCHAR(20) PRIMARY KEY, state VARCHAR(20) DEFAULT 'new')")
	type Letter struct {
		ID    string `gorm:"primaryKey"`
		State string `gorm:"default:(-)"`
	}
	rows := 0
	for i, off := range []bool{false, true} {
		id := string(rune('a' + i))
		db, err := gorm.Open(gormmysql.New(gormmysql.Config{DriverName: r.Register(), DSN: r.DB.DSN, DisableWithReturning: off}),
			&gorm.Config{Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		pool, err := db.DB()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pool.Close() })
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		err = db.WithContext(ctx).Create(&Letter{ID: id}).Error
		asks := !off && !testdb.MySQLPath() // MySQL has no RETURNING
		if errors.Is(err, bedsql.ErrStaged) != asks || !asks && err != nil {
			t.Errorf("DisableWithReturning %v: %v", off, err)
		}
		if !asks {
			rows++
		}
		if err := soft.End(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := r.Count("SELECT COUNT(*) FROM letters WHERE state = 'new'"); n != rows {
		t.Errorf("%d rows are there, want %d", n, rows)
	}
}
