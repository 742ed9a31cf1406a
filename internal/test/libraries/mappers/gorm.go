package mappers

import (
	"testing"
	"time"

	gormmysql "gorm.io/driver/mysql"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Author and Book are the models of gorm's program.
type Author struct {
	ID        uint
	Name      string `gorm:"size:40;uniqueIndex"`
	Age       int
	Note      *string
	Books     []Book
	CreatedAt time.Time
	UpdatedAt time.Time
	DeletedAt gorm.DeletedAt
}

type Book struct {
	ID       uint
	Title    string `gorm:"size:80"`
	Price    float64
	Cover    []byte
	AuthorID uint
}

// GormMode is a mode of gorm with other statements.
type GormMode struct {
	Name     string
	AutoTx   bool // each write in a local transaction of its own: gorm's default
	Prepared bool
}

var GormModes = []GormMode{
	{"as it comes", true, false},
	{"PrepareStmt", true, true},
	{"SkipDefaultTransaction", false, false},
	{"PrepareStmt, SkipDefaultTransaction", false, true},
}

func OpenGorm(t *testing.T, driver, driverName, dsn string, mode GormMode) *gorm.DB {
	t.Helper()
	dialector := gormmysql.New(gormmysql.Config{DriverName: driverName, DSN: dsn})
	if driver == testdb.DriverPostgres {
		dialector = gormpostgres.New(gormpostgres.Config{DriverName: driverName, DSN: dsn})
	}
	now := time.Date(2024, 2, 29, 12, 30, 0, 123000000, time.UTC)
	db, err := gorm.Open(dialector, &gorm.Config{
		PrepareStmt: mode.Prepared, SkipDefaultTransaction: !mode.AutoTx,
		TranslateError: true, NowFunc: func() time.Time { return now }, Logger: logger.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(3)
	t.Cleanup(func() { _ = pool.Close() })
	return db
}

// EachGorm runs f in each way of using gorm, with tables of the models.
func EachGorm(t *testing.T, models []any, f func(t *testing.T, r *rig.Rig, g *gorm.DB)) {
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, mode := range GormModes {
			t.Run(mode.Name, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db))
				g := OpenGorm(t, r.DB.Driver, r.Register(), r.DB.DSN, mode)
				if err := g.AutoMigrate(models...); err != nil {
					t.Fatal(err)
				}
				f(t, r, g)
			})
		}
	})
}
