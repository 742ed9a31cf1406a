package mappers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// person is the row of sqlx's program.
type person struct {
	ID      int64          `db:"id"`
	Name    string         `db:"name"`
	Age     int            `db:"age"`
	Note    sql.NullString `db:"note"`
	Weight  float64        `db:"weight"`
	Born    time.Time      `db:"born"`
	Picture []byte         `db:"picture"`
}

var peopleTables = testdb.By[string]{
	MySQL: `CREATE TABLE person (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40) NOT NULL UNIQUE, age INT NOT NULL,
		note VARCHAR(80), weight DOUBLE NOT NULL, born DATETIME(6) NOT NULL, picture BLOB)`,
	Postgres: `CREATE TABLE person (id BIGSERIAL PRIMARY KEY, name VARCHAR(40) NOT NULL UNIQUE, age INT NOT NULL,
		note VARCHAR(80), weight DOUBLE PRECISION NOT NULL, born TIMESTAMPTZ NOT NULL, picture BYTEA)`,
	SQLite: `CREATE TABLE person (id INTEGER PRIMARY KEY AUTOINCREMENT, name VARCHAR(40) NOT NULL UNIQUE, age INT NOT NULL,
		note VARCHAR(80), weight DOUBLE NOT NULL, born DATETIME NOT NULL, picture BLOB)`,
}

const insertPerson = `INSERT INTO person (name, age, note, weight, born, picture) VALUES (:name, :age, :note, :weight, :born, :picture)`

// sqlxProgram is a user's program. It counts the units it committed, and the writes refused outside
// of local transactions.
type sqlxProgram struct {
	t         *testing.T
	db        *sqlx.DB
	kind      testdb.DB
	committed int
	refused   int
}

func somebody(i int) person {
	return person{
		Name: fmt.Sprintf("Somebody %d", i), Age: i, Weight: 60.5 + float64(i)/3,
		Born:    time.Date(1970+i, 1, 2, 3, 4, 5, 678000, time.UTC),
		Picture: []byte{0, byte(i), 255},
		Note:    sql.NullString{String: ":colon ? and $1", Valid: i%2 == 0},
	}
}

func (p *sqlxProgram) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *sqlxProgram) want(what string, got, want any) {
	p.t.Helper()
	if !reflect.DeepEqual(got, want) {
		p.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// did checks a write that stands alone.
func (p *sqlxProgram) did(res sql.Result, err error) func(rows int64) {
	p.t.Helper()
	p.must(err)
	p.committed++
	return func(rows int64) {
		p.t.Helper()
		n, err := res.RowsAffected()
		p.must(err)
		p.want("rows affected", n, rows)
	}
}

func (p *sqlxProgram) run() {
	p.t.Helper()
	p.db.MustExec(peopleTables.For(p.kind.Driver))
	p.named()
	p.prepared()
	p.transactions()
	p.refusals()
	p.queries()
}

func (p *sqlxProgram) named() {
	p.did(p.db.NamedExec(insertPerson, somebody(1)))(1)
	p.did(p.db.NamedExec(insertPerson, []person{somebody(2), somebody(3), somebody(4)}))(3)
	p.did(p.db.NamedExec("UPDATE person SET age = :age WHERE name = :name", map[string]any{"age": 50, "name": "Somebody 1"}))(1)
	query, args, err := sqlx.In("UPDATE person SET note = ? WHERE name IN (?)", "in a list", []string{"Somebody 2", "Somebody 3"})
	p.must(err)
	p.did(p.db.Exec(p.db.Rebind(query), args...))(2)

	rows, err := p.db.NamedQuery(insertPerson+" RETURNING id, name", somebody(5))
	p.must(err)
	var got []person
	for rows.Next() {
		var r person
		p.must(rows.StructScan(&r))
		got = append(got, r)
	}
	p.must(errors.Join(rows.Err(), rows.Close()))
	p.committed++
	p.want("rows of RETURNING", got, []person{{ID: 5, Name: "Somebody 5"}})

	var id int64
	p.must(p.db.Get(&id, p.db.Rebind("INSERT INTO person (name, age, weight, born) VALUES (?, 6, 1, ?) RETURNING id"), "Somebody 6", somebody(6).Born))
	p.committed++
	p.want("the generated id", id, int64(6))
}

func (p *sqlxProgram) prepared() {
	st, err := p.db.Preparex(p.db.Rebind("UPDATE person SET age = age + ? WHERE id = ?"))
	p.must(err)
	for i := range 3 {
		p.did(st.Exec(i+1, 1))(1)
	}
	p.did(st.Exec(1, 999))(0)
	p.must(st.Close())
	named, err := p.db.PrepareNamed(insertPerson)
	p.must(err)
	p.did(named.Exec(somebody(7)))(1)
	p.must(named.Close())
	q, err := p.db.Preparex(p.db.Rebind("SELECT age FROM person WHERE id = ?"))
	p.must(err)
	var age int
	p.must(q.Get(&age, 1))
	p.want("age", age, 56)
	p.must(q.Close())
}

func (p *sqlxProgram) transactions() {
	tx, err := p.db.Beginx()
	p.must(err)
	_, err = tx.NamedExec(insertPerson, somebody(8))
	p.must(err)
	st, err := tx.Preparex(tx.Rebind("UPDATE person SET weight = ? WHERE name = ?"))
	p.must(err)
	_, err = st.Exec(1.25, "Somebody 8")
	p.must(err)
	p.must(tx.Commit())
	p.committed++

	tx = p.db.MustBegin()
	tx.MustExec("DELETE FROM person")
	_, err = tx.NamedExec(insertPerson, somebody(9))
	p.must(err)
	p.must(tx.Rollback())

	tx, err = p.db.BeginTxx(context.Background(), nil)
	p.must(err)
	var locked person
	forUpdate := " FOR UPDATE"
	if p.kind.Driver == testdb.DriverSQLite {
		forUpdate = ""
	}
	p.must(tx.Get(&locked, tx.Rebind("SELECT * FROM person WHERE id = ?"+forUpdate), 2))
	tx.MustExec("SAVEPOINT one")
	tx.MustExec(tx.Rebind("UPDATE person SET age = ? WHERE id = ?"), 1000, locked.ID)
	tx.MustExec("ROLLBACK TO SAVEPOINT one")
	tx.MustExec(tx.Rebind("UPDATE person SET age = ? WHERE id = ?"), locked.Age+10, locked.ID)
	p.must(tx.Commit())
	p.committed++
}

func (p *sqlxProgram) refusals() {
	_, err := p.db.NamedExec(insertPerson, somebody(1))
	if !rig.IsDriversOwn(p.kind, err) {
		p.t.Errorf("a duplicate: %T, want the driver's own error", err)
	}
	_, err = p.db.Exec("UPDATE person SET nope = 1")
	if !rig.IsDriversOwn(p.kind, err) {
		p.t.Errorf("an unknown column: %T, want the driver's own error", err)
	}
	p.refused += 2
	if err := p.db.Get(&person{}, "SELECT * FROM person WHERE id = 999"); !errors.Is(err, sql.ErrNoRows) {
		p.t.Errorf("no row: %v", err)
	}
}

func (p *sqlxProgram) queries() {
	var all []person
	p.must(p.db.Select(&all, "SELECT * FROM person ORDER BY id"))
	p.want("people", len(all), 8)
	p.want("the one whose update was undone", all[1].Age, 12)
	want := somebody(3)
	want.ID, want.Note = 3, sql.NullString{String: "in a list", Valid: true}
	all[2].Born = all[2].Born.UTC()
	p.want("a row", all[2], want)
	query, args, err := sqlx.In("SELECT name FROM person WHERE id IN (?) ORDER BY id", []int{1, 3})
	p.must(err)
	var names []string
	p.must(p.db.Select(&names, p.db.Rebind(query), args...))
	p.want("names", names, []string{"Somebody 1", "Somebody 3"})
	rows, err := p.db.Queryx("SELECT id, name FROM person WHERE age > 20 ORDER BY id")
	p.must(err)
	n := 0
	for rows.Next() {
		_, err := rows.SliceScan()
		p.must(err)
		n++
	}
	p.must(errors.Join(rows.Err(), rows.Close()))
	p.want("rows", n, 1)
	m := map[string]any{}
	p.must(p.db.QueryRowx("SELECT COUNT(*) AS n FROM person").MapScan(m))
	p.want("columns", len(m), 1)
}

func TestSqlxRunsUnchanged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		bareDB := rig.FreshLike(t, db)
		bare := &sqlxProgram{t: t, db: OpenSqlx(t, bareDB, bareDB.SQLDriver()), kind: bareDB}
		bare.run()
		r := rig.New(t, db)
		p := &sqlxProgram{t: t, db: OpenSqlx(t, db, r.Register()), kind: db}
		p.run()
		wantSameRows(t, dump(t, r.Bare, "person"), dump(t, bareDB.Open(t), "person"))
		wantAllLogged(r, p.committed, p.refused)
	})
}
