package mysql

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/dialecttest"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/go-sql-driver/mysql"
)

var (
	must = dialecttest.Must
	conn = dialecttest.Conn
)

func classIs(t *testing.T, what string, err error, want dialect.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	} else if got := classify(err); got != want {
		t.Errorf("%s: %T %v is %v, want %v", what, err, err, got, want)
	}
}

// withParam adds a parameter to a DSN with or without others.
func withParam(dsn, param string) string {
	if strings.Contains(dsn, "?") {
		return dsn + "&" + param
	}
	return dsn + "?" + param
}

// schema has a generated column on MySQL from 5.7 on, and on MariaDB.
const schema = `CREATE TABLE t (
	id INT PRIMARY KEY, n INT NOT NULL, s VARCHAR(3), u INT UNIQUE, e ENUM('a','b'), d DATE,
	/*!50700 g INT AS (n + 1) VIRTUAL, */ /*M! g INT AS (n + 1) VIRTUAL, */ CONSTRAINT positive CHECK (n >= 0)) ENGINE=InnoDB`

func TestDialect(t *testing.T) {
	columns := []string{"BIGINT UNSIGNED", "DOUBLE", "DECIMAL(40,10)", "VARCHAR(200)", "VARBINARY(200)", "DATETIME(6)"}
	if testdb.Knows(t, testdb.MySQL(t).Open(t), "CREATE TABLE j (v JSON)") {
		columns = append(columns, "JSON")
	}
	dialecttest.Exercise(t, dialecttest.Kit{
		Name: name, DB: testdb.MySQL, WithParam: withParam, Dialect: newDialect(nil), Target: Target, NewConnector: NewConnector, Neutral: neutral,
		Code: func(code string) dialect.Class {
			number, state, _ := strings.Cut(code, " ")
			if len(number) == 2 { // a class of SQLSTATEs
				number, state = "65000", number+"000"
			}
			n, _ := strconv.Atoi(number)
			err := &mysql.MySQLError{Number: uint16(n)}
			copy(err.SQLState[:], state)
			return classify(fmt.Errorf("wrapped: %w", err))
		},
		Own: func(t testing.TB) map[string][]string {
			lists := map[string][]string{}
			for _, file := range []string{"errors/mysql-server.txt", "errors/mariadb-server.txt"} {
				for line := range strings.Lines(cases.Text(t, file)) {
					if f := strings.Fields(line); f[0] != "#" {
						lists[file] = append(lists[file], f[0]+" "+f[1])
					}
				}
			}
			if own := ownList(t); own != nil { // this machine's server
				lists["errmsg-utf8.txt"] = own
			}
			return lists
		},
		BadConn: dialect.Unreachable,
		Schema: []string{
			schema, "CREATE TABLE child (id INT PRIMARY KEY, t INT NOT NULL, FOREIGN KEY (t) REFERENCES t (id)) ENGINE=InnoDB",
			"INSERT INTO t (id, n, u) VALUES (1, 1, 1), (3, 1, 3)", "INSERT INTO child VALUES (1, 1)",
			"CREATE VIEW v AS SELECT count(*) AS c FROM t",
			"CREATE TRIGGER no BEFORE DELETE ON child FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'",
		},
		Misfits: []dialecttest.Call{
			dialecttest.Misfit("INSERT INTO t (id, n) VALUES (?, ?)", 1, struct{}{}),
			dialecttest.Misfit("INSERT INTO t (id, n) VALUES (?, ?)", 1, sql.Named("n", 1)),
			dialecttest.Misfit("INSERT INTO t (id, n, d) VALUES (1, 1, ?)", time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC)),
		},
		Modes:       []string{"interpolateParams=false", "interpolateParams=true"},
		Unreachable: []string{"root@tcp(127.0.0.1:1)/x", "root@tcp(nohost.invalid:1)/x", "root@unix(/nowhere/mysql.sock)/x"},
		BadDSN:      "no slash",
		Hold:        []string{"BEGIN", "UPDATE t SET n = 2 WHERE id = 1"},
		Server:      sessions,
		Values: dialecttest.Values{
			Modes:   []string{"parseTime=true", "interpolateParams=true", "loc=Asia%2FTokyo"},
			Columns: columns,
			Marker:  "?", Markers: "?, ?", Shown: "HEX(CAST(v AS BINARY))", SameErrors: true, Least: 30,
			Of: func() []any {
				return []any{
					nil, true, int64(-3), uint64(math.MaxUint64), 0.1, 1e300, "text", "nul\x00 und ü", `{"a":1}`, []byte(`{"b":2}`),
					[]byte{0, 255}, json.RawMessage(`{"n":12345678901234567890}`), json.RawMessage(nil),
					time.Date(2024, 5, 1, 10, 0, 0, 123456789, time.FixedZone("x", 7200)), time.Time{},
				}
			},
		},
	})
}

// ownList reads the source of error messages of a MariaDB on this machine.
func ownList(t testing.TB) (codes []string) {
	var base string
	if err := testdb.MySQL(t).Open(t).QueryRow("SELECT @@basedir").Scan(&base); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(base, "share", "m*", "errmsg-utf8.txt"))
	if len(files) == 0 {
		return nil // another machine's, or MySQL
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	number, starts, names := 0, regexp.MustCompile(`^(?:start|skip-to)-error-number (\d+)`), regexp.MustCompile(`^[A-Z]\w+(?:[ \t]+(\w{5}))?(?:[ \t]+\w{5})?[ \t]*$`)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if m := starts.FindStringSubmatch(line); m != nil {
			number, _ = strconv.Atoi(m[1])
		} else if m := names.FindStringSubmatch(line); m != nil && number > 0 {
			codes = append(codes, fmt.Sprintf("%d %s", number, cmp.Or(m[1], "HY000")))
			number++
		}
	}
	return codes
}

var sessions = &dialecttest.Server{
	ID: "SELECT CONNECTION_ID()", Sleep: "DO SLEEP(60)",
	Asleep:      "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %d AND state = 'User sleep'",
	LockTimeout: "SET innodb_lock_wait_timeout = 1", StatementTimeout: "SET max_statement_time = 1",
	NoTimeout: "SET innodb_lock_wait_timeout = 50 /*M! , max_statement_time = 0 */",
	Cancel:    "KILL QUERY %d", Kill: "KILL %d", ReadOnly: "START TRANSACTION READ ONLY",
	// This is not information_schema.innodb_trx: that is a copy, and it is not refreshed while
	// clients read it more often than every 100 ms.
	Waits: func(t *testing.T, db *sql.DB, id int64) bool {
		var kind, name, status string
		if err := db.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
			t.Fatal(err)
		}
		for trx := range strings.SplitSeq(status, "---TRANSACTION ") {
			if strings.Contains(trx, fmt.Sprintf("thread id %d,", id)) && strings.Contains(trx, "LOCK WAIT") {
				return true
			}
		}
		return false
	},
}
