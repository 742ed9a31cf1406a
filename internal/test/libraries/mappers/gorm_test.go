package mappers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// gormProgram is a user's program. It counts the units it committed, and the writes refused outside
// of local transactions.
type gormProgram struct {
	t         *testing.T
	db        *gorm.DB
	mode      GormMode
	committed int
	refused   int
}

// did counts a write: one local transaction in gorm's own mode, a number of single statements
// without it.
func (p *gormProgram) did(res *gorm.DB, rows int64, statements int) {
	p.t.Helper()
	if res.Error != nil {
		p.t.Fatal(res.Error)
	}
	if rows >= 0 && res.RowsAffected != rows {
		p.t.Errorf("%d rows affected, want %d", res.RowsAffected, rows)
	}
	if p.mode.AutoTx {
		statements = 1
	}
	p.committed += statements
}

func (p *gormProgram) want(what string, got, want any) {
	p.t.Helper()
	if !reflect.DeepEqual(got, want) {
		p.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (p *gormProgram) run() {
	p.t.Helper()
	for range 2 { // the second finds all there
		if err := p.db.AutoMigrate(&Author{}, &Book{}); err != nil {
			p.t.Fatal(err)
		}
	}
	p.creates()
	p.updates()
	p.refusals()
	p.transactions()
	p.queries()
	p.deletes()
}

func (p *gormProgram) creates() {
	note := "a 'note' with ? and $1"
	ada := Author{Name: "Ada", Age: 36, Note: &note}
	p.did(p.db.Create(&ada), 1, 1)
	p.want("the generated id", ada.ID, uint(1))

	bert := Author{Name: "Bert", Age: 20, Books: []Book{{Title: "One", Price: 1.5, Cover: []byte{0, 255, 1}}, {Title: "Two"}}}
	p.did(p.db.Create(&bert), 1, 2)
	p.want("the children's parent", []uint{bert.Books[0].AuthorID, bert.Books[1].AuthorID}, []uint{bert.ID, bert.ID})
	if bert.Books[0].ID == 0 || bert.Books[1].ID == bert.Books[0].ID {
		p.t.Errorf("the children's ids are %d and %d", bert.Books[0].ID, bert.Books[1].ID)
	}

	var many []Author
	for i := range 5 {
		many = append(many, Author{Name: fmt.Sprintf("Many %d", i), Age: i})
	}
	p.did(p.db.CreateInBatches(&many, 2), 5, 3)
	for i, a := range many[1:] {
		p.want("the ids of a batch", a.ID, many[i].ID+1)
	}
}

func (p *gormProgram) updates() {
	var ada Author
	if err := p.db.First(&ada, "name = ?", "Ada").Error; err != nil {
		p.t.Fatal(err)
	}
	ada.Age, ada.Note = 37, nil
	p.did(p.db.Save(&ada), 1, 1)
	p.did(p.db.Model(&Author{}).Where("age < ?", 3).Updates(map[string]any{"age": 30}), 3, 1)
	p.did(p.db.Model(&ada).UpdateColumn("age", gorm.Expr("age + ?", 1)), 1, 1)
	p.did(p.db.Model(&Author{}).Where("name = ?", "nobody").Update("age", 1), 0, 1)
	res := p.db.Exec("UPDATE authors SET note = ? WHERE name IN ?", "by text", []string{"Many 0", "Many 1"})
	p.want("rows of Exec", res.RowsAffected, int64(2))
	p.want("error of Exec", res.Error, nil)
	p.committed++

	upsert := clause.OnConflict{Columns: []clause.Column{{Name: "name"}}, DoUpdates: clause.AssignmentColumns([]string{"age"})}
	p.did(p.db.Clauses(upsert).Create(&[]Author{{Name: "Ada", Age: 40}, {Name: "Carl", Age: 41}}), -1, 1)
	p.did(p.db.Clauses(clause.OnConflict{DoNothing: true}).Create(&Author{Name: "Carl", Age: 99}), -1, 1)
	var created Author
	p.did(p.db.Where(Author{Name: "Dora"}).Attrs(Author{Age: 7}).FirstOrCreate(&created), 1, 1)
	p.want("FirstOrCreate found nothing", created.Age, 7)
	if err := p.db.Where(Author{Name: "Dora"}).Attrs(Author{Age: 8}).FirstOrCreate(&created).Error; err != nil {
		p.t.Error(err)
	}
	p.want("FirstOrCreate found it", created.Age, 7)
	if p.db.Name() == testdb.DriverPostgres {
		var changed []Author
		p.did(p.db.Model(&changed).Clauses(clause.Returning{}).Where("age >= ?", 40).Update("age", gorm.Expr("age + 1")), 2, 1)
		p.want("rows of RETURNING", len(changed), 2)
	}
}

func (p *gormProgram) refusals() {
	err := p.db.Create(&Author{Name: "Ada"}).Error
	if !errors.Is(err, gorm.ErrDuplicatedKey) {
		p.t.Errorf("a duplicate: %v, want gorm to recognise it", err)
	}
	err = p.db.Create(&Book{Title: "Orphan", AuthorID: 999}).Error
	if !errors.Is(err, gorm.ErrForeignKeyViolated) {
		p.t.Errorf("no parent: %v, want gorm to recognise it", err)
	}
	if err := p.db.First(&Author{}, 999).Error; !errors.Is(err, gorm.ErrRecordNotFound) {
		p.t.Errorf("not found: %v", err)
	}
	if !p.mode.AutoTx {
		p.refused += 2
	}
}

func (p *gormProgram) transactions() {
	failed := errors.New("failed")
	err := p.db.Transaction(func(tx *gorm.DB) error {
		p.want("in a transaction", tx.Create(&Author{Name: "Outer", Age: 1}).Error, nil)
		err := tx.Transaction(func(tx *gorm.DB) error {
			p.want("in a nested one", tx.Create(&Author{Name: "Nested and undone"}).Error, nil)
			return failed
		})
		p.want("the nested one's error", err, failed)
		return tx.Transaction(func(tx *gorm.DB) error {
			return tx.Create(&Author{Name: "Nested and kept"}).Error
		})
	})
	p.want("a transaction with nested ones", err, nil)
	p.committed++

	tx := p.db.Begin(&sql.TxOptions{Isolation: sql.LevelSerializable})
	p.want("Begin", tx.Error, nil)
	p.want("before the savepoint", tx.Create(&Author{Name: "Before"}).Error, nil)
	p.want("SavePoint", tx.SavePoint("sp1").Error, nil)
	p.want("behind it", tx.Create(&Author{Name: "Undone"}).Error, nil)
	p.want("RollbackTo", tx.RollbackTo("sp1").Error, nil)
	p.want("behind that", tx.Model(&Author{}).Where("name = ?", "Before").Update("age", 5).Error, nil)
	p.want("Commit", tx.Commit().Error, nil)
	p.committed++

	err = p.db.Transaction(func(tx *gorm.DB) error {
		p.want("to be undone", tx.Create(&Author{Name: "Never"}).Error, nil)
		p.want("to be undone", tx.Where("1 = 1").Delete(&Author{}).Error, nil)
		return failed
	})
	p.want("a transaction that is rolled back", err, failed)

	// A savepoint survives a refusal.
	err = p.db.Transaction(func(tx *gorm.DB) error {
		_ = tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&Author{Name: "Ada"}).Error })
		return tx.Create(&Author{Name: "After a refusal"}).Error
	})
	p.want("a transaction with a refusal inside", err, nil)
	p.committed++

	// One reads only, and one runs on a single connection.
	err = p.db.Transaction(func(tx *gorm.DB) error { return tx.First(&Author{}).Error })
	p.want("a transaction that reads", err, nil)
	err = p.db.Connection(func(tx *gorm.DB) error {
		p.did(tx.Create(&Author{Name: "On a connection"}), 1, 1)
		return nil
	})
	p.want("Connection", err, nil)
}

func (p *gormProgram) queries() {
	var authors []Author
	p.want("Preload", p.db.Preload("Books").Order("id").Where("age >= ?", 20).Find(&authors).Error, nil)
	books := 0
	for _, a := range authors {
		books += len(a.Books)
	}
	p.want("preloaded books", books, 2)
	var n int64
	p.want("Count", p.db.Model(&Author{}).Joins("JOIN books ON books.author_id = authors.id").Count(&n).Error, nil)
	p.want("counted by a join", n, int64(2))
	var titles []string
	p.want("Pluck", p.db.Model(&Book{}).Order("title").Pluck("title", &titles).Error, nil)
	p.want("titles", titles, []string{"One", "Two"})
	rows, err := p.db.Raw("SELECT name FROM authors WHERE deleted_at IS NULL AND name LIKE ? ORDER BY name", "Many%").Rows()
	if err != nil {
		p.t.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name string
		p.want("Scan", rows.Scan(&name), nil)
		names = append(names, name)
	}
	p.want("Rows", errors.Join(rows.Err(), rows.Close()), nil)
	p.want("names", names, []string{"Many 0", "Many 1", "Many 2", "Many 3", "Many 4"})
	err = p.db.Transaction(func(tx *gorm.DB) error {
		var a Author
		if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).First(&a, "name = ?", "Carl").Error; err != nil {
			return err
		}
		return tx.Model(&a).Update("age", a.Age+1).Error
	})
	p.want("read, locked and written", err, nil)
	p.committed++
}

func (p *gormProgram) deletes() {
	p.did(p.db.Where("name = ?", "Many 4").Delete(&Author{}), 1, 1)
	var n int64
	p.want("Count", p.db.Unscoped().Model(&Author{}).Where("deleted_at IS NOT NULL").Count(&n).Error, nil)
	p.want("softly deleted", n, int64(1))
	p.did(p.db.Unscoped().Where("name = ?", "Many 3").Delete(&Author{}), 1, 1)
	p.did(p.db.Where("title = ?", "Two").Delete(&Book{}), 1, 1)
	err := p.db.Where("name = ?", "Bert").Unscoped().Delete(&Author{}).Error
	if !errors.Is(err, gorm.ErrForeignKeyViolated) {
		p.t.Errorf("has children: %v, want gorm to recognise it", err)
	}
	if !p.mode.AutoTx {
		p.refused++
	}
}

// dump returns the content of the tables, row by row.
func dump(t *testing.T, pool *sql.DB, tables ...string) (all []string) {
	t.Helper()
	for _, table := range tables {
		rows, err := pool.QueryContext(context.Background(), "SELECT * FROM "+table+" ORDER BY 1")
		if err != nil {
			t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values, pointers := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				pointers[i] = &values[i]
			}
			if err := rows.Scan(pointers...); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s %q", table, values))
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func wantSameRows(t *testing.T, got, want []string) {
	t.Helper()
	if len(want) == 0 {
		t.Error("the program left no row behind: nothing was shown")
	}
	if slices.Equal(got, want) {
		return
	}
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("the tables differ from the bare driver's:\n%s\nwant\n%s", g, w)
		}
	}
}

// wantAllLogged checks the numbers of delivered and refused writes. It expects an empty log and no
// write outside of it.
func wantAllLogged(r *rig.Rig, delivered, refused int) {
	r.T.Helper()
	c := r.Counters
	if got := int(c.Delivered.Load()); got != delivered {
		r.T.Errorf("%d units of writes were counted as delivered, want %d", got, delivered)
	}
	if got := int(c.Refused.Load()); got != refused {
		r.T.Errorf("%d were counted as refused, want %d", got, refused)
	}
	if p, l, u, s := c.Pending.Load(), c.NotLogged.Load(), c.PassedThrough.Load(), c.Unlogged.Load(); p+l+u+s != 0 {
		r.T.Errorf("%d were left pending, %d not logged, %d passed through, %d skipped", p, l, u, s)
	}
	r.WantNoLog()
}

func TestGormRunsUnchanged(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, mode := range GormModes {
			t.Run(mode.Name, func(t *testing.T) {
				t.Parallel()
				bareDB := rig.FreshLike(t, db)
				bare := &gormProgram{t: t, db: OpenGorm(t, db.Driver, bareDB.SQLDriver(), bareDB.DSN, mode), mode: mode}
				bare.run()
				r := rig.New(t, rig.FreshLike(t, db))
				p := &gormProgram{t: t, db: OpenGorm(t, db.Driver, r.Register(), r.DB.DSN, mode), mode: mode}
				p.run()
				wantSameRows(t, dump(t, r.Bare, "authors", "books"), dump(t, bareDB.Open(t), "authors", "books"))
				if bare.committed != p.committed {
					t.Errorf("it committed %d units, on the bare driver %d", p.committed, bare.committed)
				}
				wantAllLogged(r, p.committed, p.refused)
			})
		}
	})
}

func TestGormHandsPendingWritesOn(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, prepared := range []bool{false, true} {
			t.Run(fmt.Sprintf("PrepareStmt %v", prepared), func(t *testing.T) {
				t.Parallel()
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.NoSyncRetry)
				// In gorm's own local transaction, BEGIN would meet the outage, with its error for
				// the caller.
				g := OpenGorm(t, db.Driver, r.Register(), r.DB.DSN, GormMode{Prepared: prepared})
				if err := g.AutoMigrate(&Author{}, &Book{}); err != nil {
					t.Fatal(err)
				}
				if err := g.Create(&Author{ID: 1, Name: "Ada", Age: 36}).Error; err != nil {
					t.Fatal(err)
				}
				p.Refuse()
				p.CutAll()
				rig.WantPending(t, g.Create(&Author{ID: 2, Name: "Bert"}).Error)
				rig.WantPending(t, g.Model(&Author{ID: 1}).Update("age", 37).Error)
				rig.WantPending(t, g.Create(&Book{Title: "One", AuthorID: 1}).Error)
				if err := g.First(&Author{}, 1).Error; err == nil || errors.Is(err, bedsql.ErrPending) {
					t.Errorf("a query: %v, want the driver's own error", err)
				}
				p.Accept()
				if report := r.RunOnce(); report.Delivered != 3 {
					t.Errorf("the job: %s", report)
				}
				var got []Author
				if err := g.Preload("Books").Order("id").Find(&got).Error; err != nil {
					t.Fatal(err)
				}
				if len(got) != 2 || got[0].Age != 37 || len(got[0].Books) != 1 || got[1].Name != "Bert" {
					t.Errorf("the tables hold %+v", got)
				}
				r.WantNoLog()
			})
		}
	})
}
