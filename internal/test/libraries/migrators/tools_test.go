// Package migrators runs the migrations of bed with goose, golang-migrate and atlas.
package migrators

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	atlas "ariga.io/atlas/sql/migrate"
	atlasmysql "ariga.io/atlas/sql/mysql"
	atlaspostgres "ariga.io/atlas/sql/postgres"
	"ariga.io/atlas/sql/schema"
	atlassqlite "ariga.io/atlas/sql/sqlite"
	"ariga.io/atlas/sql/sqltool"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"

	"github.com/bedsql/bed/internal/test/testdb"
)

// A tool migrates a database to a step, and keeps its versions in a table of a name.
type tool func(ctx context.Context, db testdb.DB, files fs.FS, versions string, step int) error

// tools makes the tools for one database. atlas reads directories of the others' kinds, too.
func tools(t *testing.T) map[string]tool {
	local := func(path string) (atlas.Dir, error) { return atlas.NewLocalDir(path) }
	ofGoose := func(path string) (atlas.Dir, error) { return sqltool.NewGooseDir(path) }
	ofMigrate := func(path string) (atlas.Dir, error) { return sqltool.NewGolangMigrateDir(path) }
	return map[string]tool{
		"goose": withGoose, "golang-migrate": withGolangMigrate,
		"atlas": withAtlas(t, local), "atlas on goose's": withAtlas(t, ofGoose), "atlas on golang-migrate's": withAtlas(t, ofMigrate),
	}
}

func withGoose(ctx context.Context, db testdb.DB, files fs.FS, versions string, step int) error {
	pool, err := sql.Open(db.SQLDriver(), db.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	dialect := testdb.By[goose.Dialect]{MySQL: goose.DialectMySQL, Postgres: goose.DialectPostgres, SQLite: goose.DialectSQLite3}.For(db.Driver)
	p, err := goose.NewProvider(dialect, pool, files, goose.WithTableName(versions))
	if err != nil {
		return err
	}
	_, err = p.UpTo(ctx, int64(step))
	return err
}

func withGolangMigrate(_ context.Context, db testdb.DB, files fs.FS, versions string, step int) error {
	dsn := db.DSN
	if db.Driver == testdb.DriverMySQL {
		dsn += "&multiStatements=true"
	}
	pool, err := sql.Open(db.SQLDriver(), dsn)
	if err != nil {
		return err
	}
	drivers := testdb.By[func() (database.Driver, error)]{
		MySQL: func() (database.Driver, error) {
			return mysql.WithInstance(pool, &mysql.Config{MigrationsTable: versions})
		},
		Postgres: func() (database.Driver, error) { return pgx.WithInstance(pool, &pgx.Config{MigrationsTable: versions}) },
		SQLite: func() (database.Driver, error) {
			return sqlite.WithInstance(pool, &sqlite.Config{MigrationsTable: versions})
		},
	}
	driver, err := drivers.For(db.Driver)()
	if err != nil {
		return errors.Join(err, pool.Close())
	}
	source, err := iofs.New(files, ".")
	if err != nil {
		return errors.Join(err, driver.Close())
	}
	m, err := migrate.NewWithInstance("iofs", source, db.Name, driver)
	if err != nil {
		return errors.Join(err, driver.Close())
	}
	if err = m.Migrate(uint(step)); errors.Is(err, migrate.ErrNoChange) {
		err = nil
	}
	sourceErr, driverErr := m.Close()
	return errors.Join(err, sourceErr, driverErr)
}

// withAtlas copies the files into a directory and hashes it, as `atlas migrate hash` does.
func withAtlas(t *testing.T, open func(path string) (atlas.Dir, error)) tool {
	kept := map[string]*revisions{} // by database and name
	return func(ctx context.Context, db testdb.DB, files fs.FS, versions string, step int) error {
		pool, err := sql.Open(db.SQLDriver(), db.DSN)
		if err != nil {
			return err
		}
		defer pool.Close()
		path := t.TempDir()
		if err := os.CopyFS(path, files); err != nil {
			return err
		}
		dir, err := open(path)
		if err != nil {
			return err
		}
		sum, err := dir.Checksum()
		if err != nil {
			return err
		}
		if err := atlas.WriteSumFile(dir, sum); err != nil {
			return err
		}
		drivers := testdb.By[func(schema.ExecQuerier) (atlas.Driver, error)]{MySQL: atlasmysql.Open, Postgres: atlaspostgres.Open, SQLite: atlassqlite.Open}
		driver, err := drivers.For(db.Driver)(pool)
		if err != nil {
			return err
		}
		if kept[db.Name+versions] == nil {
			kept[db.Name+versions] = &revisions{name: versions}
		}
		e, err := atlas.NewExecutor(driver, dir, kept[db.Name+versions], atlas.WithAllowDirty(true))
		if err != nil {
			return err
		}
		// Its files are named after versions, and not every number is one.
		all, err := dir.Files()
		if err != nil {
			return err
		}
		version := ""
		for _, f := range all {
			if f.Version() <= fmt.Sprintf("%05d", step) {
				version = f.Version()
			}
		}
		if err = e.ExecuteTo(ctx, version); errors.Is(err, atlas.ErrNoPendingFiles) {
			err = nil
		}
		return err
	}
}

// revisions keeps atlas's versions, which its command keeps in a table.
type revisions struct {
	name string
	all  []*atlas.Revision
}

func (r *revisions) Ident() *atlas.TableIdent { return &atlas.TableIdent{Name: r.name} }

func (r *revisions) ReadRevisions(context.Context) ([]*atlas.Revision, error) { return r.all, nil }

func (r *revisions) ReadRevision(_ context.Context, version string) (*atlas.Revision, error) {
	for _, one := range r.all {
		if one.Version == version {
			return one, nil
		}
	}
	return nil, atlas.ErrRevisionNotExist
}

func (r *revisions) WriteRevision(ctx context.Context, revision *atlas.Revision) error {
	if err := r.DeleteRevision(ctx, revision.Version); err != nil {
		return err
	}
	r.all = append(r.all, revision)
	return nil
}

func (r *revisions) DeleteRevision(_ context.Context, version string) error {
	var left []*atlas.Revision
	for _, one := range r.all {
		if one.Version != version {
			left = append(left, one)
		}
	}
	r.all = left
	return nil
}
