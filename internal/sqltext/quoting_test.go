package sqltext

import "testing"

func TestATextIsReadByTheQuotingOfItsSession(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flavor  Flavor
		quoting Quoting
		text    string
		want    Kind
	}{
		{MySQL, 0, `UPDATE t SET a = 'C:\', b = '; DELETE FROM t; -- '`, Multi},
		{MySQL, BackslashIsPlain, `UPDATE t SET a = 'C:\', b = '; DELETE FROM t; -- '`, DML},
		{MySQL, BackslashIsPlain, `UPDATE t SET a = 'it\'; DELETE FROM t; -- '`, Multi},
		{MySQL, QuotesAreNames, `UPDATE "t\" SET a = ';'`, DML},
		{MySQL, BackslashIsPlain, `UPDATE t SET a = "C:\", b = ";"`, DML},
		{Postgres, 0, `UPDATE t SET a = 'it\'s; DELETE FROM t; -- '`, Multi},
		{Postgres, BackslashEscapes, `UPDATE t SET a = 'it\'s; DELETE FROM t; -- '`, DML},
		{Postgres, BackslashEscapes, `UPDATE "t\" SET a = ';'`, DML},
	} {
		if got := ClassifyAs(test.flavor, test.quoting, test.text); got.Kind != test.want {
			t.Errorf("%s (quoting %d) is read as %s, want %s", test.text, test.quoting, got.Kind, test.want)
		}
		if test.want == Multi && !NewCache(test.flavor, 1).Get(test.text).ByQuoting {
			t.Errorf("%s is said to be read alike by all sessions", test.text)
		}
	}
	for flavor, text := range map[Flavor]string{MySQL: `UPDATE t SET a = 'a\\b', b = "c" WHERE d = 'e'`, Postgres: `UPDATE t SET a = 'a\b'`} {
		if NewCache(flavor, 1).Get(text).ByQuoting {
			t.Errorf("%s is said to be read otherwise by some sessions", text)
		}
	}
}

func TestAQuotedFunctionOfTheSessionIsSeen(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flavor  Flavor
		quoting Quoting
		text    string
		pins    bool
	}{
		{MySQL, 0, "INSERT INTO t VALUES (`LAST_INSERT_ID`())", false},
		{MySQL, 0, "INSERT INTO t VALUES (`last_insert_id` /* the id */ ())", false},
		{MySQL, 0, "INSERT INTO t VALUES (/*!50000 LAST_INSERT_ID*/())", false},
		{MySQL, 0, "INSERT INTO t VALUES (@@`last_insert_id`)", false},
		{MySQL, 0, "INSERT INTO t VALUES (@@session.`identity`)", false},
		{MySQL, 0, "INSERT INTO t VALUES (`GET_LOCK`('a', 1))", true},
		{MySQL, QuotesAreNames, `INSERT INTO t VALUES ("LAST_INSERT_ID"())`, false},
		{Postgres, 0, `INSERT INTO t VALUES ("set_config"('a.b', 'c', false))`, true},
		{Postgres, 0, `INSERT INTO t VALUES (pg_catalog.set_config('a.b', 'c', false))`, true},
		{Postgres, 0, `INSERT INTO t VALUES ("pg_catalog"."set_config" /* it */ ('a.b', 'c', false))`, true},
		{Postgres, 0, `INSERT INTO t VALUES (U&"set_config"('a.b', 'c', false))`, true},
		{Postgres, 0, `INSERT INTO t VALUES ("currval"('s'))`, false},
		{SQLite, 0, "INSERT INTO t VALUES (\"last_insert_rowid\"())", false},
		{SQLite, 0, "INSERT INTO t VALUES ([changes]())", false},
		{SQLite, 0, "INSERT INTO t VALUES (`total_changes` ())", false},
	} {
		if got := ClassifyAs(test.flavor, test.quoting, test.text); got.Kind != DML || !got.NeedsSession || got.Pins != test.pins {
			t.Errorf("%s is read as %+v", test.text, got)
		}
	}
	for flavor, text := range map[Flavor]string{MySQL: "INSERT INTO `row_count` (`found_rows`) VALUES (1)", SQLite: `INSERT INTO "changes" ("total_changes") VALUES (1)`} {
		if got := Classify(flavor, text); got.NeedsSession || got.Pins {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}
