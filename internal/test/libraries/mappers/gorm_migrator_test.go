package mappers

import (
	"fmt"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// gorm's migrator switches foreign keys off and on again on a connection of its own.
func TestAfterGormsMigratorEveryWriteIsLogged(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]func(testing.TB) testdb.DB{testdb.DriverMySQL: testdb.MySQL, testdb.DriverPostgres: testdb.Postgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			adds := 0
			r := rig.New(t, open(t), func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
			db := OpenGorm(t, driver, r.Register(), r.DB.DSN, GormModes[0])
			pool, err := db.DB()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pool.Close() })
			pool.SetMaxOpenConns(1)
			const rounds = 3
			for i := range rounds {
				if err := db.Migrator().DropTable(&Author{}, &Book{}); err != nil {
					t.Fatal(err)
				}
				if err := db.AutoMigrate(&Author{}, &Book{}); err != nil {
					t.Fatal(err)
				}
				if err := db.Create(&Author{Name: fmt.Sprint(i)}).Error; err != nil {
					t.Fatal(err)
				}
				if err := db.Create(&Book{AuthorID: 999}).Error; err == nil {
					t.Error("a book without its author was taken: foreign keys are still off")
				}
			}
			if n := r.Counters.PassedThrough.Load(); n != 0 || adds != rounds {
				t.Errorf("%d writes ran unlogged, %d units were logged; want 0 and %d", n, adds, rounds)
			}
		})
	}
}
