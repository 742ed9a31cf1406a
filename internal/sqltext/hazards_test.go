package sqltext

import (
	"strings"
	"testing"
)

// A hazardRow says what makes running a text twice differ from running it once.
type hazardRow struct {
	text string
	want Hazards
}

func hazardRows(f Flavor) []hazardRow {
	var own []hazardRow
	switch f {
	case MySQL:
		own = mysqlHazards
	case Postgres:
		own = postgresHazards
	case SQLite:
		own = sqliteHazards
	case ANSI:
		own = ansiHazards
	}
	return append(append([]hazardRow(nil), own...), commonHazards...)
}

func TestHazards(t *testing.T) {
	t.Parallel()
	for _, f := range flavors {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range hazardRows(f.flavor) {
				got := Classify(f.flavor, r.text)
				if got.Kind != DML {
					t.Errorf("%q is read as %v, not as a DML", r.text, got.Kind)
				}
				if got.Hazards != r.want {
					t.Errorf("%q\n\thas the hazards %06b\n\twant            %06b", r.text, got.Hazards, r.want)
				}
			}
		})
	}
}

// A hazard is not lost behind, or within, another statement of the same text.
func TestHazardsInAWithQuery(t *testing.T) {
	t.Parallel()
	for _, r := range commonHazards {
		if !strings.HasPrefix(r.text, "UPDATE") && !strings.HasPrefix(r.text, "DELETE") {
			continue
		}
		for _, text := range []string{
			"WITH x AS (" + r.text + ") SELECT * FROM x",
			"WITH x AS (SELECT 1) " + r.text,
			"WITH x AS (" + r.text + " RETURNING a) DELETE FROM u WHERE b IN (SELECT a FROM x)",
		} {
			if got := Classify(Postgres, text).Hazards; got != r.want&^Limited {
				t.Errorf("%q\n\thas the hazards %06b\n\twant            %06b", text, got, r.want)
			}
		}
	}
}

var commonHazards = []hazardRow{
	// Plain.
	{"UPDATE t SET a = 1", 0},
	{"UPDATE t SET a = ?, b = 'b' WHERE id = ?", 0},
	{"UPDATE t SET a = NULL, b = c, d = e + 1 WHERE f = f + 1", 0},
	{"UPDATE t SET a = 'a + 1'", 0},
	{"UPDATE t SET a = (SELECT max(b) FROM u), b2 = 1", 0},
	{"UPDATE t SET total = (SELECT sum(total) FROM items WHERE items.t = t.id)", 0},
	{"UPDATE t SET a = b WHERE a = a + 1", 0},
	{"UPDATE t SET a = u.a FROM u WHERE u.id = t.id", 0},
	{"DELETE FROM t WHERE a = a + 1", 0},
	{"DELETE FROM t", 0},
	{"UPDATE t SET a = a + (1", 0}, // no statement to the database
	{"MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET a = u.a WHEN NOT MATCHED THEN INSERT (id, a) VALUES (u.id, u.a)", 0},

	// A column set from itself.
	{"UPDATE t SET a = a + 1", SelfReferring},
	{"UPDATE t SET a=a-1 WHERE id = 1", SelfReferring},
	{"UPDATE t SET A = a + ?", SelfReferring},
	{"UPDATE t SET b = 1, a = 2 * (3 + (a))", SelfReferring},
	{"UPDATE t SET a = t.a + 1", SelfReferring},
	{"UPDATE s.t SET a = t.a + 1", SelfReferring},
	{"UPDATE t AS x SET a = x.a + 1", SelfReferring},
	{"UPDATE t x SET a = x.a + 1 WHERE x.id = 1", SelfReferring},
	{"UPDATE t SET a = u.a + t.a FROM u", SelfReferring},
	{"UPDATE t SET a = lower(a) + 'x'", SelfReferring},
	{"UPDATE t SET a = NOT a", SelfReferring},
	{"UPDATE t SET a = concat(a, 'x')", SelfReferring},
	{"UPDATE t SET a = CASE WHEN a = 1 THEN 2 ELSE 1 END", SelfReferring},
	{"UPDATE t SET a = CASE WHEN b = 1 THEN a + 1 ELSE a END, c = 1 WHERE id = 1", SelfReferring},
	{"UPDATE t SET a = CASE WHEN b THEN 1 ELSE 2 END, c = c + 1", SelfReferring},
	{"UPDATE t SET a = (SELECT t.a + b FROM u)", SelfReferring},
	{"UPDATE t SET a = (SELECT max(a) + 1 FROM t)", SelfReferring},
	{"UPDATE t SET a = (SELECT max(b) + 1 FROM t)", 0},
	{"UPDATE t SET a = b, b = a", SelfReferring},
	{"UPDATE t SET a = b, b = 5", SelfReferring},
	{"UPDATE t SET a = b IS DISTINCT FROM c, d = d + 1", SelfReferring},
	{"MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET a = t.a + u.a WHEN NOT MATCHED THEN INSERT (id) VALUES (1)", SelfReferring},
	{"MERGE INTO t AS x USING u ON x.id = u.id WHEN MATCHED THEN UPDATE SET a = u.b, c = x.c + 1", SelfReferring},

	// What is the same the second time.
	{"UPDATE t SET a = a", 0},
	{"UPDATE t SET a = t.a, b = 1", 0},
	{"UPDATE t SET a = COALESCE(a, ?)", 0},
	{"UPDATE t SET a = coalesce(?, t.a) WHERE id = 1", 0},
	{"UPDATE t SET a = GREATEST(a, 5), b = LEAST(3, b)", 0},
	{"UPDATE t SET a = lower(a)", 0},
	{"UPDATE t SET a = CASE id WHEN 1 THEN 10 WHEN 2 THEN 20 ELSE a END", 0},
	{"UPDATE t SET a = CASE WHEN id = 1 THEN 10 ELSE a END, b = CASE WHEN id = 2 THEN t.b ELSE 1 END WHERE id IN (1, 2)", 0},
	{"UPDATE t SET a = COALESCE(a, 0) + 1", SelfReferring},
	{"UPDATE t SET a = GREATEST(a + 1, 5)", SelfReferring},
	{"UPDATE t SET a = a, b = b + 1", SelfReferring},
	{"UPDATE t SET a = GREATEST(a, 5) + GREATEST(a, 5)", SelfReferring},
	{"UPDATE t SET a = CASE WHEN id = 1 THEN 10 ELSE a END + 1", SelfReferring},

	// A condition that holds no more.
	{"UPDATE t SET a = ?, version = version + 1 WHERE id = ? AND version = ?", 0},
	{"UPDATE t SET a = a - 5, status = 'paid' WHERE id = 1 AND t.status = 'new'", 0},
	{"UPDATE t SET a = a - 5, paid_at = ? WHERE id = 1 AND paid_at IS NULL", 0},
	{"UPDATE t SET a = a - 5, status = 'new' WHERE id = 1 AND status = 'new'", SelfReferring},
	{"UPDATE t SET a = a - 5, status = 'paid' WHERE id = 1 OR status = 'new'", SelfReferring},
	{"UPDATE t SET a = a - 5 WHERE id = 1 AND a >= 5", SelfReferring},
	{"UPDATE t SET a = a - 5 WHERE NOT a = 5", SelfReferring},
	{"UPDATE t SET a = a - 5, b = 1 WHERE id = 1 AND b = c", SelfReferring},

	// The clock.
	{"UPDATE t SET a = CURRENT_TIMESTAMP WHERE id = 1", Clock},
	{"UPDATE t SET a = current_date", Clock},
	{"UPDATE t SET a = 'now()', b = 'CURRENT_TIMESTAMP'", 0},
	{"UPDATE t SET a = 1 WHERE b < CURRENT_TIMESTAMP", 0},
	{"UPDATE t SET a = 1 WHERE b IN (SELECT c FROM u WHERE d > CURRENT_TIMESTAMP)", 0},
	{"DELETE FROM t WHERE expires < CURRENT_TIMESTAMP", 0},
	{"UPDATE t SET a = 1 RETURNING CURRENT_TIMESTAMP", 0},
	{"INSERT INTO t (id, a) VALUES (1, CURRENT_TIMESTAMP)", Clock},
	{"INSERT INTO t (id, a) SELECT id, CURRENT_TIMESTAMP FROM u WHERE b < 1", Clock},

	// Chance.
	{"UPDATE t SET random = 1, rand = uuid", 0},
	{"INSERT INTO random (id) VALUES (1)", 0},
	{"INSERT INTO s.random (id) VALUES (1)", 0},
	{"UPDATE t SET a = 'random()'", 0},

	// Keys.
	{"INSERT INTO t (id, a) VALUES (1, 2)", 0},
	{"INSERT INTO t (a, \"id\") VALUES (?, ?), (?, ?)", 0},
	{"INSERT INTO t (uuid, a) VALUES (?, ?)", 0},
	{"INSERT INTO t (a, b) VALUES (?, ?)", KeyUnknown},
	{"INSERT INTO t VALUES (?, ?)", KeyUnknown},
	{"INSERT INTO t DEFAULT VALUES", NoKey},
	{"INSERT INTO t (a, b) VALUES (?, ?) RETURNING id", NoKey},
	{"INSERT INTO t (a, b) VALUES (?, ?) RETURNING a, t.id", NoKey},
	{"INSERT INTO t (uuid, b) VALUES (?, ?) RETURNING id", 0},
	{"INSERT INTO t (id, b) VALUES (?, ?) RETURNING id", 0},
	{"INSERT INTO t (a) VALUES (?) RETURNING a", KeyUnknown},
	{"INSERT INTO t (id, uuid) VALUES (DEFAULT, ?)", 0},
	{"INSERT INTO t SELECT * FROM u", 0},
	{"INSERT INTO t (a) SELECT b FROM u", KeyUnknown},
	{"INSERT INTO t (a) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM t WHERE a = 1)", 0},
	{"WITH x AS (SELECT 1) INSERT INTO t (id, a) SELECT * FROM x", 0},
}

var ansiHazards = []hazardRow{
	{"UPDATE t SET a = now(), b = SYSDATE()", Clock},
	{"UPDATE t SET a = rand()", NonDeterministic},
	{"INSERT INTO t (id) VALUES (nextval('s'))", NonDeterministic},
	{"INSERT INTO t (id, a) VALUES (DEFAULT, 1)", NoKey},
	{"DELETE FROM t WHERE a = 1 LIMIT 1", Limited},
}

var mysqlHazards = []hazardRow{
	{"UPDATE t SET `n` = n + 1", SelfReferring},
	{"UPDATE t SET n = `N` + 1", SelfReferring},
	{"UPDATE `s`.`t` SET `t`.`n` = `t`.`n` + 1", SelfReferring},
	{"UPDATE t SET n = \"n\"", 0},
	{"UPDATE LOW_PRIORITY IGNORE t SET n = t.n + 1", SelfReferring},
	{"UPDATE a JOIN b ON a.id = b.id SET a.n = a.n + b.n", SelfReferring},
	{"UPDATE a JOIN b ON a.id = b.id SET a.n = b.n", 0},
	{"UPDATE a, b SET a.n = b.n, b.m = 1 WHERE a.id = b.id", 0},
	{"UPDATE a, b SET a.n = b.n, b.n = 1 WHERE a.id = b.id", SelfReferring},
	{"UPDATE t SET price = ?, total = price * qty", 0}, // the new price, every time
	{"UPDATE t SET total = price * qty, price = ?", SelfReferring},
	{"UPDATE t SET a = REPLACE(a, 'x', 'xx')", SelfReferring},
	{"UPDATE t SET id = LAST_INSERT_ID(id + 1)", SelfReferring},
	{"/*!40000 UPDATE t SET n = n + 1 */", SelfReferring},
	{"SET STATEMENT max_statement_time = 1 FOR UPDATE t SET n = n + 1", SelfReferring},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON DUPLICATE KEY UPDATE n = n + VALUES(n)", SelfReferring},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON DUPLICATE KEY UPDATE n = VALUES(n), m = VALUES(m) + 1", 0},
	{"INSERT INTO t (id, n) VALUES (1, 1) AS new ON DUPLICATE KEY UPDATE n = new.n", 0},
	{"INSERT INTO t (id, n) VALUES (1, 1) AS new ON DUPLICATE KEY UPDATE n = t.n + new.n", SelfReferring},
	{"INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id), n = IFNULL(n, 1)", 0},
	{"INSERT INTO t (a, n) SELECT a, n FROM u WHERE b < NOW() ON DUPLICATE KEY UPDATE n = t.n + u.n, at = NOW()", SelfReferring | Clock},

	{"INSERT INTO t (id, n) VALUES (NULL, 1)", NoKey},
	{"INSERT INTO t (n, `id`) VALUES (1, DEFAULT)", NoKey},
	{"INSERT INTO t (n, `id`) VALUES (1, ?)", 0},
	{"INSERT INTO t VALUES (NULL, 'a')", NoKey},
	{"INSERT INTO t VALUES ('a', NULL)", KeyUnknown},
	{"INSERT INTO t () VALUES ()", NoKey},
	{"INSERT INTO t VALUES ()", NoKey},
	{"INSERT t SET a = 1", KeyUnknown},
	{"INSERT t SET id = 1, a = 2", 0},
	{"INSERT t SET id = NULL, a = 2", NoKey},
	{"INSERT t SET a = 1, b = a + 1 ON DUPLICATE KEY UPDATE b = 1", 0},
	{"INSERT IGNORE INTO t VALUES (NULL, 'a')", 0},
	{"INSERT LOW_PRIORITY IGNORE t (a) VALUES (1)", 0},
	{"REPLACE INTO t (a) VALUES (1)", 0},
	{"INSERT INTO t PARTITION (p0) (a) VALUES (1)", KeyUnknown},

	{"UPDATE t SET a = NOW(6), b = UTC_TIMESTAMP, c = CURDATE()", Clock},
	{"UPDATE t SET a = UNIX_TIMESTAMP()", Clock},
	{"UPDATE t SET a = UNIX_TIMESTAMP(?)", 0},
	{"UPDATE t SET a = LOCALTIME", Clock},
	{"INSERT INTO t (id, a) VALUES (UUID(), RAND())", NonDeterministic},
	{"INSERT INTO t (id) VALUES (UUID_SHORT())", NonDeterministic},
	{"INSERT INTO t (id) VALUES (NEXT VALUE FOR s)", NonDeterministic},
	{"DELETE FROM t WHERE a > RAND()", NonDeterministic},

	{"DELETE FROM t LIMIT 10", Limited},
	{"DELETE FROM t WHERE a = 1 ORDER BY id LIMIT 10", Limited},
	{"DELETE FROM t WHERE id = ? LIMIT 1", 0},
	{"DELETE FROM t WHERE a = 1 OR id = ? LIMIT 1", Limited},
	{"UPDATE t SET a = 1 LIMIT 10", Limited},
	{"UPDATE t SET a = 1 WHERE b = 2 ORDER BY c LIMIT 10", 0},
	{"UPDATE jobs SET owner = ? WHERE owner IS NULL ORDER BY id LIMIT 1", Limited},
	{"UPDATE t SET a = (SELECT b FROM u ORDER BY c LIMIT 1)", 0},
}

var postgresHazards = []hazardRow{
	{`UPDATE t SET "n" = n + $1`, SelfReferring},
	{`UPDATE ONLY s."t" SET n = "t"."n" + 1`, SelfReferring},
	{"UPDATE t SET (a, b) = (b, a)", SelfReferring},
	{"UPDATE t SET (a, b) = (1, c)", 0},
	{"UPDATE t SET (a, b) = (SELECT a, b FROM u)", 0},
	{"UPDATE t SET a[1] = a[2]", SelfReferring},
	{"UPDATE t SET a[i] = 1, b = i", 0},
	{"UPDATE t SET c.x = (c).x + 1", SelfReferring},
	{"UPDATE t SET c.x = 1, d = x", 0},
	{"UPDATE t SET price = $1, total = price * qty", SelfReferring}, // the old price
	{"UPDATE t SET a = jsonb_set(a, '{b}', $1)", 0},
	{"UPDATE t SET a = jsonb_set(a, '{b}', a)", SelfReferring},
	{"UPDATE t SET n = n + 1, version = $1 WHERE version = $2 RETURNING n", 0},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n", SelfReferring},
	{"INSERT INTO t AS x (id, n) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = x.n + 1 WHERE x.n < 5", SelfReferring},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n, m = excluded.m + 1", 0},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON CONFLICT (id) WHERE n > 0 DO UPDATE SET at = now()", Clock},
	{"INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING RETURNING id", 0},
	{"INSERT INTO t (id, a) VALUES (DEFAULT, 1)", NoKey},
	{"INSERT INTO t VALUES (DEFAULT, 1)", NoKey},
	{"INSERT INTO t (id, a) VALUES (NULL, 1)", 0},
	{`INSERT INTO "t" ("a") VALUES ($1),($2) RETURNING "id"`, NoKey},
	{"WITH x AS (INSERT INTO t (a) VALUES (1) RETURNING id) INSERT INTO u (id, at) SELECT id, now() FROM x", NoKey | Clock},
	{"INSERT INTO t (id) VALUES (gen_random_uuid())", NonDeterministic},
	{"INSERT INTO t (id) VALUES (pg_catalog.random())", NonDeterministic},
	{"UPDATE t SET a = nextval('s'), b = clock_timestamp()", NonDeterministic | Clock},
	{"UPDATE t SET a = $$now()$$", 0},
	{"UPDATE t SET a = utc_timestamp", 0},
	{"UPDATE t SET a = 1 WHERE id = (SELECT id FROM t WHERE b LIMIT 1 FOR UPDATE SKIP LOCKED)", 0},
}

var sqliteHazards = []hazardRow{
	{"UPDATE t SET [n] = `n` + 1", SelfReferring},
	{"UPDATE OR IGNORE t SET n = t.n + 1", SelfReferring},
	{"UPDATE t SET (a, b) = (b, a)", SelfReferring},
	{"UPDATE t SET n = max(n, ?)", 0},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON CONFLICT DO UPDATE SET n = n + excluded.n", SelfReferring},
	{"INSERT INTO t (id, n) VALUES (1, 1) ON CONFLICT DO UPDATE SET n = excluded.n", 0},
	{"INSERT INTO t VALUES (NULL, 'a')", NoKey},
	{"INSERT OR IGNORE INTO t VALUES (NULL, 'a')", 0},
	{"INSERT OR REPLACE INTO t (a) VALUES (1)", 0},
	{"INSERT OR ABORT INTO t (a) VALUES (1)", KeyUnknown},
	{"REPLACE INTO t (a) VALUES (1)", 0},
	{"UPDATE t SET a = datetime('now')", Clock},
	{"UPDATE t SET a = datetime('NOW', '+1 day')", Clock},
	{"UPDATE t SET a = strftime('%s', 'now')", Clock},
	{"UPDATE t SET a = strftime(?, 'now')", Clock},
	{"UPDATE t SET a = unixepoch()", Clock},
	{"UPDATE t SET a = datetime(?, 'unixepoch'), b = date(c), d = 'now', e = f(1, 'now')", 0},
	{"DELETE FROM t WHERE a < datetime('now', '-7 days')", 0},
	{"UPDATE t SET a = random()", NonDeterministic},
	{"UPDATE t SET a = localtime, now = now()", 0},
	{"DELETE FROM t LIMIT 10", Limited},
}

func TestMask(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		flavor Flavor
		text   string
		want   string
	}{
		{MySQL, "UPDATE t  SET n=n+1, a = 'x''y' /* z */ WHERE b = \"q\" AND c = 1.5e3 -- 7\n", "UPDATE t SET n=n+?, a = ? WHERE b = ? AND c = ?"},
		{MySQL, "UPDATE `t1` SET n = n + ? WHERE a = x'41' AND b = .5", "UPDATE `t1` SET n = n + ? WHERE a = x? AND b = .?"},
		{Postgres, `UPDATE "t" SET "n" = "n" + $1 WHERE a = E'x\'y' AND b = $$z$$ AND c = $2`, `UPDATE "t" SET "n" = "n" + $1 WHERE a = ? AND b = ? AND c = $2`},
		{SQLite, `UPDATE "t" SET "n" = "n" + ?1, [m] = :p WHERE "t"."a" = "secret"`, `UPDATE "t" SET ? = ? + ?1, [m] = :p WHERE "t"."a" = ?`},
		{ANSI, `INSERT INTO s."t" VALUES ("secret", 1)`, `INSERT INTO s."t" VALUES (?, ?)`},
		{MySQL, "UPDATE t SET a = 'unterminated", "UPDATE t SET a = ?"},
		{MySQL, "", ""},
	} {
		if got := Mask(r.flavor, r.text); got != r.want {
			t.Errorf("%q\n\tis masked as %q\n\twant         %q", r.text, got, r.want)
		}
	}
}
