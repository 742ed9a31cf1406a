package differential

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/internal/test/testdb"
)

var createTable = regexp.MustCompile(`(?m)^CREATE TABLE ([\w.]+)`)

// schema reads the statements of a schema: each line without an indent begins a statement.
func schema(t testing.TB, driver string) []string {
	t.Helper()
	return lines(t, driver+".schema.sql")
}

func (p pair) tables() (names []string) {
	for _, m := range createTable.FindAllStringSubmatch(strings.Join(p.schema, "\n"), -1) {
		names = append(names, m[1])
	}
	return names
}

// database makes an empty database. In tests of hours, it must be dropped before their end.
func (p pair) database() (testdb.DB, func() error, error) {
	if p.driver == sqlite {
		dir, err := os.MkdirTemp("", "bed-differential-")
		if err != nil {
			return testdb.DB{}, nil, err
		}
		path := filepath.Join(dir, "test.db")
		return testdb.DB{Driver: sqlite, Name: path, DSN: "file:" + path + "?_pragma=busy_timeout(5000)"},
			func() error { return os.RemoveAll(dir) }, nil
	}
	server, err := testdb.Find(p.driver)
	if err != nil {
		return testdb.DB{}, nil, err
	}
	return testdb.Create(p.driver, server)
}

// dsn is the database's with the variant's parameters instead of its own.
func (p pair) dsn(db testdb.DB) string {
	form, parameters, _ := strings.Cut(p.parameters, " ")
	switch p.driver {
	case mysql:
		base, _, _ := strings.Cut(db.DSN, "?")
		return base + "?" + parameters
	case sqlite:
		if form == "plain" {
			return strings.TrimSuffix(db.Name+"?"+parameters, "?")
		}
		return strings.TrimSuffix("file:"+db.Name+"?"+parameters, "?")
	}
	cfg, err := pgconn.ParseConfig(db.DSN)
	if err != nil {
		return db.DSN
	}
	if form == "keywords" {
		password := ""
		if cfg.Password != "" {
			password = " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(cfg.Password) + "'"
		}
		return "host=" + cfg.Host + " port=" + strconv.Itoa(int(cfg.Port)) + " user=" + cfg.User + password + " dbname=" + cfg.Database + " sslmode=disable " + parameters
	}
	u, err := url.Parse(db.DSN)
	if err != nil {
		return db.DSN
	}
	u.RawQuery = strings.TrimSuffix("sslmode=disable&"+parameters, "&")
	return u.String()
}

// withDataSource names the data source in a DSN of any form.
func withDataSource(driver, dsn, name string) string {
	switch {
	case driver == postgres && !strings.Contains(dsn, "://"):
		return dsn + " bedDataSource='" + name + "'"
	case strings.Contains(dsn, "?"):
		return dsn + "&bedDataSource=" + url.QueryEscape(name)
	}
	return dsn + "?bedDataSource=" + url.QueryEscape(name)
}
