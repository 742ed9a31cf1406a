package job

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// The entry records the application account's effects on its session. A job with another account
// delivers to the same place with the same effect, or not at all.
func TestJobOfAnotherAccountDeliversLikeTheApplication(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		t.Run(fmt.Sprint(guarantee), func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			r := rig.New(t, db, rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.Exec("CREATE TABLE public.said (id INT PRIMARY KEY, at TEXT)")
			app := r.AccountOf(t, "app", "CREATE SCHEMA $ AUTHORIZATION $", "ALTER ROLE $ SET timezone = 'Asia/Tokyo'", "ALTER ROLE $ SET app.tenant = 'seven'",
				"CREATE TABLE $.said (id INT PRIMARY KEY, at TEXT, tenant TEXT DEFAULT current_setting('app.tenant', true))", "ALTER TABLE $.said OWNER TO $")
			own := "app_" + db.Name
			job := r.AccountOf(t, "job", "ALTER ROLE $ SET timezone = 'America/New_York'", "ALTER ROLE $ SET app.other = 'x'")
			pool := r.Open(rig.Impatient(app).DSN)
			if _, err := pool.Exec("INSERT INTO said VALUES (0, now()::text)"); err != nil {
				t.Fatal(err)
			}
			write := func(id int) {
				gate, err := r.Bare.Begin()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := gate.Exec("LOCK TABLE " + own + ".said"); err != nil {
					t.Fatal(err)
				}
				_, err = pool.Exec(r.Q("INSERT INTO said (id, at) VALUES (?, CAST(TIMESTAMPTZ '2024-01-01 00:00:00Z' AS text))"), id)
				_ = gate.Rollback()
				rig.WantPending(t, err)
			}
			write(1)
			u := r.WantOneLog()
			if !strings.Contains(u.Session, "search_path="+own+", public") || !strings.Contains(u.Session, "timezone=Asia/Tokyo") || !strings.Contains(u.Session, "app.tenant=seven") {
				t.Errorf("the entry says %q", u.Session)
			}
			// The job may not use the schema: nothing is delivered to public.said instead.
			if report := r.DeliverTo(t, u.DataSource, job.DSN); report.PushedBack != 1 {
				t.Errorf("without rights: %s", report)
			}
			if u = r.WantOneLog(); !strings.Contains(u.LastError, own+", public") || !strings.Contains(u.LastError, "search_path=public") || u.Tries != 0 || u.Parked {
				t.Errorf("it leaves %+v", u)
			}
			jobRole := "job_" + db.Name
			r.Exec("GRANT USAGE ON SCHEMA "+own+" TO "+jobRole, "GRANT ALL ON ALL TABLES IN SCHEMA "+own+" TO "+jobRole, "ALTER ROLE "+jobRole+" RESET app.other")
			if report := r.DeliverTo(t, u.DataSource, job.DSN); report.Delivered != 1 {
				t.Errorf("with them: %s, %+v", report, r.Logs())
			}
			if n := r.Count("SELECT COUNT(*) FROM " + own + ".said WHERE id = 1 AND at = '2024-01-01 09:00:00+09' AND tenant = 'seven'"); n != 1 {
				t.Error("it is not what the application would have written")
			}
			if n := r.Count("SELECT COUNT(*) FROM public.said"); n != 0 {
				t.Error("it was delivered elsewhere")
			}
			r.WantNoLog()
		})
	}
}

// Overlong settings do not stop a write: its entry holds a digest of the required settings, and a
// job with other settings pushes it back.
func TestSettingTooLongToStoreRefusesNoWrite(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("tenant ", 3000)
	t.Run("of the account", func(t *testing.T) {
		t.Parallel()
		r := rig.New(t, testdb.Postgres(t), rig.NoSyncRetry)
		r.Exec("CREATE TABLE said (id INT PRIMARY KEY, tenant TEXT DEFAULT current_setting('app.tenant'))")
		app := r.AccountOf(t, "app", "ALTER ROLE $ SET app.tenant = '"+long+"'", "ALTER ROLE $ SET timezone = 'Asia/Tokyo'")
		job := r.AccountOf(t, "job")
		pool := r.Open(rig.Impatient(app).DSN)
		if _, err := pool.Exec("INSERT INTO said VALUES (0)"); err != nil {
			t.Fatal(err)
		}
		free := r.LockAll("said")
		_, err := pool.Exec("INSERT INTO said VALUES (1)")
		free()
		rig.WantPending(t, err)
		u := r.WantOneLog()
		if !strings.Contains(u.Session, "timezone=Asia/Tokyo") {
			t.Errorf("the entry says %q", u.Session)
		}
		if report := r.DeliverTo(t, u.DataSource, job.DSN); report.PushedBack != 1 {
			t.Errorf("a job without it: %s", report)
		}
		if u = r.WantOneLog(); !strings.Contains(u.LastError, "app.tenant=(not shown)") || u.Tries != 0 || u.Parked {
			t.Errorf("it leaves %+v", u)
		}
		r.Exec("ALTER ROLE job_" + r.DB.Name + " SET app.tenant = '" + long + "'")
		if report := r.DeliverTo(t, u.DataSource, job.DSN); report.Delivered != 1 {
			t.Errorf("a job with it: %s, %+v", report, r.Logs())
		}
		if n := r.Count("SELECT COUNT(*) FROM said WHERE length(tenant) = " + fmt.Sprint(len(long))); n != 2 {
			t.Errorf("%d rows are as the application writes them", n)
		}
	})
	for name, value := range map[string]string{"of the DSN": "'" + long + "'", "of the DSN, not UTF-8": "'\xff'"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bare := testdb.MySQL(t)
			db := rig.WithParam(bare, "@tenant", value)
			r := rig.New(t, db, rig.NoSyncRetry)
			r.Exec("CREATE TABLE said (id INT PRIMARY KEY)")
			pool := r.Open(rig.WithParam(rig.Impatient(db), "lock_wait_timeout", "1").DSN)
			if _, err := pool.Exec("INSERT INTO said VALUES (0)"); err != nil {
				t.Fatal(err)
			}
			free := r.LockAll("said")
			_, err := pool.Exec("INSERT INTO said VALUES (1)")
			free()
			rig.WantPending(t, err)
			u := r.WantOneLog()
			if name == "of the DSN" {
				if report := r.DeliverTo(t, u.DataSource, rig.WithParam(bare, "@tenant", "'another'").DSN); report.PushedBack != 1 {
					t.Errorf("a job whose DSN has another: %s", report)
				}
			}
			if report := r.DeliverTo(t, u.DataSource, db.DSN); report.Delivered != 1 {
				t.Errorf("a job with the same DSN: %s, %+v", report, r.Logs())
			}
			r.WantNoLog()
		})
	}
}

// init_connect may lead an application's sessions into another database than its
// DSN: a job whose sessions begin elsewhere delivers there.
func TestJobDeliversIntoTheApplicationsCurrentDatabase(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		for _, applicationIsLed := range []bool{true, false} {
			t.Run(fmt.Sprint(guarantee, ", the application is led elsewhere ", applicationIsLed), func(t *testing.T) {
				t.Parallel()
				led := rig.WithDefaults(t, "--init-connect=USE elsewhere", "--lock-wait-timeout=1")
				admin, err := mysql.ParseDSN(led.DSN)
				if err != nil {
					t.Fatal(err)
				}
				admin.User = "root"
				direct := led
				direct.DSN = admin.FormatDSN()
				app, job, place, other := led, direct, "elsewhere", direct.Name
				if !applicationIsLed {
					app, job, place, other = direct, led, other, place
				}
				r := rig.NewWithLog(t, app, testdb.NewLog(t, testdb.DriverMySQL), rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
				r.Bare = direct.Open(t)
				r.Exec("CREATE DATABASE elsewhere", "CREATE TABLE elsewhere.said (id INT)", "CREATE TABLE said (id INT)")
				pool := r.Open(app.DSN)
				if _, err := pool.Exec("INSERT INTO said VALUES (0)"); err != nil {
					t.Fatal(err)
				}
				free := r.LockAll(place + ".said")
				_, err = pool.Exec("INSERT INTO said VALUES (1)")
				free()
				rig.WantPending(t, err)
				u := r.WantOneLog()
				if report := r.DeliverTo(t, u.DataSource, job.DSN); report.Delivered != 1 {
					t.Errorf("the job: %s, %+v", report, r.Logs())
				}
				if n := r.Count("SELECT COUNT(*) FROM " + place + ".said"); n != 2 {
					t.Errorf("%d rows in %s", n, place)
				}
				if n := r.Count("SELECT COUNT(*) FROM " + other + ".said"); n != 0 {
					t.Error("it was delivered elsewhere")
				}
				r.WantNoLog()
			})
		}
	}
}

// init_connect runs for the application's account alone. A job with another account also applies
// the server settings from it. But a user variable, which a trigger may read, prevents delivery by
// that job.
func TestJobHasWhatInitConnectSetForApplications(t *testing.T) {
	t.Parallel()
	for statement, same := range map[string]bool{
		"SET default_regex_flags = 'EXTENDED'":                               true,
		"SET @`the tenant` = '" + rig.SecretValue + "', @@lc_time_names = 1": false,
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			led := rig.WithDefaults(t, "--init-connect="+statement, "--lock-wait-timeout=1")
			admin, err := mysql.ParseDSN(led.DSN)
			if err != nil {
				t.Fatal(err)
			}
			admin.User = "root"
			r := rig.NewWithLog(t, led, testdb.NewLog(t, testdb.DriverMySQL), rig.NoSyncRetry)
			r.Exec("CREATE TABLE said (id INT, how TEXT)",
				"CREATE TRIGGER says BEFORE INSERT ON said FOR EACH ROW SET NEW.how = CONCAT_WS('|', @`the tenant`, 'ab' REGEXP 'a b')")
			pool := r.Open(led.DSN)
			if _, err := pool.Exec("INSERT INTO said (id) VALUES (0)"); err != nil {
				t.Fatal(err)
			}
			free := r.LockAll("said")
			_, err = pool.Exec("INSERT INTO said (id) VALUES (1)")
			free()
			rig.WantPending(t, err)
			u := r.WantOneLog()
			report := r.DeliverTo(t, u.DataSource, admin.FormatDSN())
			if same {
				if report.Delivered != 1 {
					t.Errorf("the job: %s, %+v", report, r.Logs())
				}
			} else if u = r.WantOneLog(); report.PushedBack != 1 || !strings.Contains(u.LastError, "@`the tenant`=(not shown)") || strings.Contains(u.LastError, rig.SecretValue) {
				t.Errorf("the job: %s, %+v", report, u)
			} else if report := r.DeliverTo(t, u.DataSource, led.DSN); report.Delivered != 1 {
				t.Errorf("a job of the application's account: %s, %+v", report, r.Logs())
			}
			if n := r.Count("SELECT COUNT(*) FROM said AS a JOIN said AS b ON a.how = b.how"); n != 4 {
				t.Error("the job wrote something else than the application")
			}
		})
	}
}

// A setting of an application's own may be a secret: a difference names it, and no
// value.
func TestSessionErrorHidesValuesOfOwnSettings(t *testing.T) {
	t.Parallel()
	rig.Poolers(t) // skips
	for name, through := range map[string]func(t *testing.T, db testdb.DB) testdb.DB{
		"direct":          func(_ *testing.T, db testdb.DB) testdb.DB { return db },
		"behind a pooler": func(t *testing.T, db testdb.DB) testdb.DB { return testdb.PgBouncer(t, db) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := new(rig.LogLines)
			r := rig.New(t, testdb.Postgres(t), rig.NoSyncRetry, func(c *bedsql.Config) { c.Logger = lines.Logger() })
			r.Exec("CREATE TABLE said (id INT)")
			app := r.AccountOf(t, "app", "GRANT ALL ON said TO $", "ALTER ROLE $ SET app.token = '"+rig.SecretValue+";of.app=1'")
			job := through(t, r.AccountOf(t, "job", "GRANT ALL ON said TO $", "ALTER ROLE $ SET app.other = '"+rig.SecretValue+";of.job=1'"))
			pool := r.Open(rig.Impatient(app).DSN)
			if err := pool.Ping(); err != nil {
				t.Fatal(err)
			}
			free := r.LockAll("said")
			_, err := pool.Exec("INSERT INTO said VALUES (1)")
			free()
			rig.WantPending(t, err)
			tgt := rig.TargetOf(t, job)
			report, err := r.JobFor(asyncjob.Targets{r.WantOneLog().DataSource: tgt}, func(c *asyncjob.Config) { c.Logger = lines.Logger() }).RunOnce(t.Context())
			if err != nil || report.PushedBack != 1 {
				t.Errorf("the job: %s, %v", report, err)
			}
			for what, text := range map[string]string{"the entry": r.WantOneLog().LastError, "the log": lines.String()} {
				named := "app.other=(not shown)"
				if name != "direct" { // there nothing is set, and the pooler's account has nothing of its own
					named = "app.token=(not shown)"
				}
				if !strings.Contains(text, named) || strings.Contains(text, rig.SecretValue) || strings.Contains(text, "of.") {
					t.Errorf("%s says %s", what, text)
				}
			}
		})
	}
}

// Behind a pooler that drops the search path, the application writes to its session's place, and so
// does the job. A job behind such a pooler does not deliver other places' entries.
func TestPoolerIgnoringSearchPathMisdeliversNothing(t *testing.T) {
	t.Parallel()
	rig.Poolers(t) // skips
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		for _, applicationIsBehindIt := range []bool{true, false} {
			t.Run(fmt.Sprint(guarantee, ", the application is behind it ", applicationIsBehindIt), func(t *testing.T) {
				t.Parallel()
				direct := testdb.Postgres(t)
				behind := testdb.PgBouncer(t, direct, "ignore_startup_parameters=search_path")
				app, job, place := direct, behind, "tenant"
				if applicationIsBehindIt {
					app, job, place = behind, direct, "public"
				}
				r := rig.NewWithLog(t, app, testdb.Postgres(t), rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
				r.Bare = direct.Open(t)
				r.Exec("CREATE SCHEMA tenant", "CREATE TABLE public.said (id INT)", "CREATE TABLE tenant.said (id INT)", "ALTER DATABASE "+direct.Name+" SET lock_timeout = '300ms'")
				pool := r.Open(rig.WithParam(app, "search_path", "tenant").DSN)
				gate, err := r.Bare.Begin()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := gate.Exec("LOCK TABLE public.said, tenant.said"); err != nil {
					t.Fatal(err)
				}
				_, err = pool.Exec("INSERT INTO said VALUES (1)")
				_ = gate.Rollback()
				rig.WantPending(t, err)
				u := r.WantOneLog()
				report := r.DeliverTo(t, u.DataSource, rig.WithParam(job, "search_path", "tenant").DSN)
				if applicationIsBehindIt {
					if report.Delivered != 1 {
						t.Errorf("a job that is not: %s, %+v", report, r.Logs())
					}
				} else {
					if u = r.WantOneLog(); report.PushedBack != 1 || !strings.Contains(u.LastError, "search_path=tenant") || !strings.Contains(u.LastError, "search_path=postgres, public") {
						t.Errorf("the job: %s, %+v", report, u)
					}
					if n := r.Count("SELECT COUNT(*) FROM public.said"); n != 0 {
						t.Error("it was delivered to public")
					}
					if report := r.DeliverTo(t, u.DataSource, direct.DSN); report.Delivered != 1 {
						t.Errorf("a job that is not: %s", report)
					}
				}
				if n := r.Count("SELECT COUNT(*) FROM " + place + ".said"); n != 1 {
					t.Errorf("%d rows in %s", n, place)
				}
				r.WantNoLog()
			})
		}
	}
}

// In ambiguous cases we ask the server for its reading.
func TestServerReadDSNIsDeliveredUnchanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db     func(testing.TB) testdb.DB
		params [][2]string
		setup  []string
		where  string
	}{
		"PostgreSQL, a name that is not ASCII": {testdb.Postgres, param("search_path", "Öl,public"), []string{`CREATE SCHEMA "Öl"`, `CREATE SCHEMA "öl"`, `CREATE TABLE "Öl".said (id INT, what TEXT)`, `CREATE TABLE "öl".said (id INT, what TEXT)`}, `"Öl".said`},
		"PostgreSQL, blanks":                   {testdb.Postgres, param("app.tenant", " a "), []string{"CREATE TABLE said (id INT, what TEXT DEFAULT '<' || current_setting('app.tenant') || '>')"}, "said WHERE what = '< a >'"},
		"PostgreSQL, blanks in options":        {testdb.Postgres, param("options", `-c app.tenant=\ a\ `), []string{"CREATE TABLE said (id INT, what TEXT DEFAULT '<' || current_setting('app.tenant') || '>')"}, "said WHERE what = '< a >'"},
		"PostgreSQL, a lone backslash":         {testdb.Postgres, param("options", `-c app.tenant=a\`), []string{"CREATE TABLE said (id INT, what TEXT DEFAULT '<' || current_setting('app.tenant') || '>')"}, "said WHERE what = '<a>'"},
		"PostgreSQL, all letters":              {testdb.Postgres, param("search_path", "abcdefghijklmnopqrstuvwxyz_0$9,public"), []string{`CREATE SCHEMA "abcdefghijklmnopqrstuvwxyz_0$9"`, `CREATE TABLE "abcdefghijklmnopqrstuvwxyz_0$9".said (id INT)`, "CREATE TABLE said (id INT)"}, `"abcdefghijklmnopqrstuvwxyz_0$9".said`},
		"PostgreSQL, quoted names":             {testdb.Postgres, param("search_path", `"a, ""B", public`), []string{`CREATE SCHEMA "a, ""B"`, `CREATE TABLE "a, ""B".said (id INT, what TEXT)`, "CREATE TABLE said (id INT, what TEXT)"}, `"a, ""B".said`},
		"PostgreSQL, names that differ in case": {testdb.Postgres, param("TimeZone", "Asia/Tokyo", "timezone", "UTC"),
			[]string{"CREATE TABLE said (id INT, what TEXT DEFAULT current_setting('timezone'))"}, "said"},
		"MySQL, a mode by its number": {testdb.MySQL, param("sql_mode", "4"), []string{"CREATE TABLE said (id INT, \"what\" TEXT)"}, "said"},
		"MySQL, names that differ in case": {testdb.MySQL, param("time_zone", "'+02:00'", "TIME_ZONE", "'+03:00'"),
			[]string{"CREATE TABLE said (id INT, what TIMESTAMP)"}, "said"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := c.db(t)
			r := rig.New(t, db, rig.NoSyncRetry)
			with, hasty := db, rig.Impatient(db)
			for _, p := range c.params {
				with, hasty = rig.WithParam(with, p[0], p[1]), rig.WithParam(hasty, p[0], p[1])
			}
			if db.Driver == testdb.DriverMySQL {
				hasty = rig.WithParam(hasty, "lock_wait_timeout", "1")
				c.setup[0] = strings.ReplaceAll(c.setup[0], `"`, "`")
			}
			r.Exec(c.setup...)
			gate := r.LockAll(c.where)
			_, err := r.Open(hasty.DSN).Exec("INSERT INTO said (id) VALUES (1)")
			gate()
			rig.WantPending(t, err)
			if report := r.DeliverTo(t, r.WantOneLog().DataSource, db.DSN); report.Delivered != 1 {
				t.Fatalf("the job: %s, %+v", report, r.Logs())
			}
			if n := r.Count("SELECT COUNT(*) FROM " + c.where); n != 1 {
				t.Errorf("%d rows in %s", n, c.where)
			}
			r.WantNoLog()
		})
	}
}
