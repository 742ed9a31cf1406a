package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/journal"
)

// server is a simulated MySQL: databases of tables with a unique key on id,
// transactions that lock the rows they write, and sessions: at READ COMMITTED in
// the log, at READ UNCOMMITTED in targets. A statement that meets a lock is
// answered with a lock timeout at once. Its caller calls it from one goroutine at
// a time.
type server struct {
	name      string
	databases map[string]map[string]*table
	sessions  int
	// isLog marks the log's server. attempts marks a server that also keeps attempts, from which
	// End learns of discarded entries.
	isLog, attempts bool
	// down: it was killed, and takes no connections.
	down bool
	// version is the version that it reports.
	version string
	// changed are the rows of writers in order of change.
	changed []int
	// forbidden are the rows of writers protected by a constraint.
	forbidden map[int]bool
}

const (
	mySQL = "8.0.36"
	// home is the database of the application, and elsewhere that of a misconfigured job.
	home, elsewhere = "shop", "other"
)

func newServer(name, version string) *server {
	s := &server{name: name, version: version, forbidden: map[int]bool{}, databases: map[string]map[string]*table{home: {}, elsewhere: {}}}
	s.databases[home]["effect"] = &table{by: "id", defaults: row{"id": int64(0), "n": int64(0)}, cells: map[any]*cell{}}
	return s
}

func (*server) now() int64 { return time.Now().UnixMilli() }

// effect is how often the write into a row is committed.
func (s *server) effect(id int) int64 {
	return s.databases[home]["effect"].cells[int64(id)].committed["n"].(int64)
}

func (s *server) newEffect(id int) {
	s.databases[home]["effect"].cells[int64(id)] = &cell{committed: row{"id": int64(id), "n": int64(0)}}
}

// table holds its rows by their id.
type table struct {
	by       string // the columns by which its rows are held
	key      string // the name of its unique key
	defaults row
	cells    map[any]*cell
}

// keyOf returns the key of a row.
func (t *table) keyOf(r row) any {
	if by := strings.Split(t.by, ", "); len(by) > 1 {
		return fmt.Sprint(r[by[0]], " ", r[by[1]])
	}
	return r[t.by]
}

// cell is a row: its committed state, and the pending state of the transaction that owns it. A
// missing row is nil.
type cell struct {
	committed, pending row
	owner              *session
}

func (c *cell) seenBy(s *session) row {
	if c.owner == s || c.owner != nil && !s.server.isLog && !s.committed {
		return c.pending
	}
	return c.committed
}

// session is a connection's side of the server.
type session struct {
	server   *server
	conn     *conn
	id       int
	database string
	open     bool
	// committed limits the transaction's view to committed rows; asked does the same for the next
	// one.
	committed, asked bool
	// doomed means that the server has rolled the transaction back. It reports that at the next
	// statement of any kind.
	doomed bool
	owned  []*cell
	// savepoints are those of the open transaction.
	savepoints []savepoint
}

// savepoint is the transaction's view of its rows.
type savepoint struct {
	name string
	rows map[*cell]row
}

func (s *server) connect(database string) *session {
	s.sessions++
	return &session{server: s, id: s.sessions, database: database}
}

func serverError(number uint16, state, text string) *mysql.MySQLError {
	e := &mysql.MySQLError{Number: number, Message: text}
	copy(e.SQLState[:], state)
	return e
}

var (
	errNotPrepared = serverError(1047, "08S01", "WSREP has not yet prepared node for application use")
	errDenied      = serverError(1142, "42000", "UPDATE command denied to user for table 'effect'")
	errDeadlock    = serverError(1213, "40001", "Deadlock found when trying to get lock; try restarting transaction")
	errConstraint  = serverError(4025, "23000", "CONSTRAINT `effect` failed for `shop`.`effect`")
	errLockTimeout = serverError(1205, "HY000", "Lock wait timeout exceeded; try restarting transaction")
)

func (s *session) commit() {
	for _, c := range s.owned {
		if c.committed != nil && c.pending != nil && c.pending["n"] != c.committed["n"] {
			s.server.changed = append(s.server.changed, int(c.pending["id"].(int64)))
		}
		c.committed, c.pending, c.owner = c.pending, nil, nil
	}
	s.owned, s.open, s.committed, s.savepoints = nil, false, false, nil
}

func (s *session) rollback() {
	for _, c := range s.owned {
		c.pending, c.owner = nil, nil
	}
	s.owned, s.open, s.doomed, s.committed, s.savepoints = nil, false, false, false, nil
}

// save sets a savepoint. Outside a transaction it ends with its statement.
func (s *session) save(name string) *answer {
	rows := map[*cell]row{}
	for _, c := range s.owned {
		rows[c] = maps.Clone(c.pending)
	}
	s.savepoints = append(slices.DeleteFunc(s.savepoints, func(sp savepoint) bool { return sp.name == name }), savepoint{name, rows})
	return &answer{}
}

// backTo undoes changes since a savepoint and keeps the savepoint, or releases it. The rows stay
// locked.
func (s *session) backTo(name string, undo bool) *answer {
	i := slices.IndexFunc(s.savepoints, func(sp savepoint) bool { return sp.name == name })
	if i < 0 {
		panic(serverError(1305, "42000", "SAVEPOINT "+name+" does not exist"))
	}
	if !undo {
		s.savepoints = s.savepoints[:i]
		return &answer{}
	}
	for _, c := range s.owned {
		if was, had := s.savepoints[i].rows[c]; had {
			c.pending = maps.Clone(was)
		} else {
			c.pending = maps.Clone(c.committed)
		}
	}
	s.savepoints = s.savepoints[:i+1]
	return &answer{}
}

// answer is the answer to a statement.
type answer struct {
	columns  []string
	rows     [][]any
	affected int64
}

// run carries a statement out.
func (s *session) run(text string, args []any) (a *answer, err error) {
	if s.doomed {
		s.rollback()
		if text != "ROLLBACK" {
			return nil, errDeadlock
		}
	}
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(*mysql.MySQLError)
			if !ok {
				panic(p)
			}
			a, err = nil, e
		}
		switch {
		case s.open:
		case err == nil:
			s.commit()
		default:
			s.rollback()
		}
	}()
	switch text {
	case begin, "START /* does it take writes? */ TRANSACTION READ WRITE":
		s.commit() // what is open
		s.open, s.committed, s.asked = true, s.asked, false
		return &answer{}, nil
	case atReadCommitted:
		s.asked = true
		return &answer{}, nil
	case "COMMIT":
		s.commit()
		return &answer{}, nil
	case "ROLLBACK":
		s.rollback()
		return &answer{}, nil
	}
	if s.server.isMariaDB() && strings.HasPrefix(text, compoundStart) {
		return s.compound(text, args)
	}
	for _, name := range journal.Tables {
		// The tables for operators beside the log are no part of the protocol.
		if name == journal.Attempts && s.server.attempts {
			if strings.HasPrefix(text, "DELETE "+name) { // those of long ago, which take space
				return nil, errLockTimeout
			}
		} else if strings.Contains(text, name) {
			return nil, serverError(1142, "42000", "command denied to user for table '"+name+"'")
		}
	}
	if _, name, ok := strings.Cut(text, "FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = '"); ok {
		name, _, _ = strings.Cut(name, "'")
		return s.indexes(name), nil
	}
	if strings.Contains(text, "@@init_connect") { // which leads nowhere: receipts are where its sessions are
		return &answer{columns: make([]string, 2)}, nil
	}
	p := parse(s, text, args)
	switch {
	case p.takes("SELECT"):
		return p.selects(), nil
	case p.takes("SHOW", "SESSION", "VARIABLES"), p.takes("SHOW", "GLOBAL", "VARIABLES"):
		return p.variables(), nil
	case p.takes("INSERT", "INTO"):
		return p.insert(), nil
	case p.takes("INSERT", "IGNORE", "INTO"):
		p.ignores = true
		return p.insert(), nil
	case p.takes("UPDATE"):
		return p.update(), nil
	case p.takes("DELETE", "FROM"):
		return p.deletes(), nil
	case p.takes("SAVEPOINT"):
		return s.save(p.name()), nil
	case p.takes("ROLLBACK", "TO", "SAVEPOINT"):
		return s.backTo(p.name(), true), nil
	case p.takes("RELEASE", "SAVEPOINT"):
		return s.backTo(p.name(), false), nil
	case p.takes("SET"):
		return &answer{}, nil
	case p.takes("CREATE", "TABLE", "IF", "NOT", "EXISTS"):
		name := p.name()
		s.commit()
		s.create(name, text)
		return &answer{}, nil
	}
	if p.takes("VALUES") {
		if s.server.isMariaDB() {
			return &answer{columns: make([]string, 1), rows: [][]any{p.list()}}, nil
		}
		// MySQL has VALUES ROW() alone.
		return nil, serverError(1064, "42000", "You have an error in your SQL syntax")
	}
	panic("the simulated server cannot run " + text)
}

// indexes is the key of a table, as the catalogue names it.
func (s *session) indexes(name string) *answer {
	a := &answer{columns: make([]string, 4)}
	if t := s.server.databases[s.database][name]; t != nil {
		for column := range strings.SplitSeq(t.by, ", ") {
			a.rows = append(a.rows, []any{t.key, "unique", "", column})
		}
	}
	return a
}

func (s *session) create(name, ddl string) {
	if s.server.databases[s.database][name] != nil {
		return
	}
	t := &table{by: "id", key: name + "_id", defaults: row{"void": int64(0), "log_gone": int64(0)}, cells: map[any]*cell{}}
	if name != "bed_receipt" {
		t.defaults = row{}
	}
	if _, by, ok := strings.Cut(ddl, "PRIMARY KEY ("); ok {
		t.by, _, _ = strings.Cut(by, ")")
	}
	if strings.Contains(ddl, "PRIMARY KEY") && !strings.Contains(ddl, t.key) {
		t.key = "PRIMARY"
	}
	for _, line := range strings.Split(ddl, "\n")[1:] {
		column, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		column = strings.ReplaceAll(column, "`", "")
		if column != "" && column == strings.ToLower(column) && column[0] >= 'a' && t.defaults[column] == nil {
			t.defaults[column] = nil
		}
	}
	s.server.databases[s.database][name] = t
}

var variables = map[string]string{
	"autocommit": "ON", "completion_type": "NO_CHAIN", "innodb_rollback_on_timeout": "0", "sql_mode": "STRICT_TRANS_TABLES", "version": "", "max_allowed_packet": "67108864",
	"lower_case_table_names": "0", "version_comment": "",
}

func (s *session) variable(name string) any {
	name = name[strings.LastIndexAny(name, "@.")+1:]
	if name == "in_transaction" && s.server.isMariaDB() {
		return truth(s.open)
	}
	v, ok := variables[name]
	if name == "version" {
		v = s.server.version
	}
	if !ok {
		panic(serverError(1193, "HY000", "Unknown system variable"))
	}
	return v
}

func (p *parser) variables() *answer {
	p.want("WHERE")
	from, a := p.at, &answer{columns: make([]string, 2)}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		p.at, p.row = from, row{"Variable_name": name}
		if isTrue(p.expr()) {
			a.rows = append(a.rows, []any{name, p.s.variable(name)})
		}
	}
	return a
}
