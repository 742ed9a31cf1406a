package cli

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// This file tests doctor on a cluster, a standby, and servers with another's protocol: its findings
// there, and its silence if they are right.

// only leaves one data source, there.
func only(db testdb.DB) func(*testing.T, *installed) {
	return func(_ *testing.T, in *installed) { in.sources = map[string]testdb.DB{"orders": db} }
}

func TestDoctorLooksAtGaleraClusters(t *testing.T) {
	t.Parallel()
	c := testdb.Galera(t, 3, func(int) []string { return nil })
	logs, targets := c.DB(t), c.DB(t)
	// The node's DSN makes reads wait for the others' commits.
	seeing := func(db testdb.DB) testdb.DB { return with(db, "wsrep_sync_wait=1") }
	in := install(t, seeing(logs[0]), map[string]testdb.DB{"orders": seeing(targets[0])})
	in.right()

	in.sources["orders"] = targets[0]
	in.wrong("galera", "wsrep_sync_wait=1")

	// A node cut off from its cluster refuses SELECT; SHOW gives the reason.
	in.sources["orders"] = seeing(targets[1])
	in.right()
	c.Nodes[1].Isolate()
	c.Nodes[1].AwaitCutOff()
	in.sources["orders"] = targets[1]
	in.wrong("galera", "primary component")
	in.sources["orders"], in.logDSN = seeing(targets[0]), logs[1].DSN
	in.wrong("galera", "primary component")
	c.Nodes[1].Heal()
}

func TestDoctorTellsOfAStandby(t *testing.T) {
	t.Parallel()
	primary := testdb.PrivatePostgres(t)
	log, target := primary.DB(t), primary.DB(t)
	in := install(t, log, map[string]testdb.DB{"orders": target})
	standby := primary.Standby(t)
	in.right()
	in.sources["orders"] = testdb.OnEither(target, primary.Addr(), standby.Addr())
	in.right()
	in.sources["orders"] = target.Via(standby.Addr())
	in.wrong("read-only", "target_session_attrs=read-write")

	// A log there is not examined further.
	in.sources["orders"], in.logDSN = target, log.Via(standby.Addr()).DSN
	in.wrong("read-only", "primary")
}

func TestDoctorReportsServersThatOnlySpeakPostgreSQL(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t)
	for product, version := range map[string]string{
		"CockroachDB": "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)",
		"YugabyteDB":  "PostgreSQL 11.2-YB-2.20.1.3-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6, 64-bit",
	} {
		t.Run(product, func(t *testing.T) {
			in := install(t, server.DB(t), map[string]testdb.DB{"orders": server.DB(t)})
			in.right()
			// This is a PostgreSQL with another product's version().
			db := in.sources["orders"]
			in.exec(db, "CREATE FUNCTION version() RETURNS text LANGUAGE sql AS $$ SELECT '"+version+"'::text $$",
				"ALTER DATABASE \""+db.Name+"\" SET search_path = public, pg_catalog")
			in.wrong("product", "test with your own faults")
		})
	}
}

func TestDoctorReportsADatabaseWithoutFullUnicode(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t)
	in := install(t, server.DB(t), map[string]testdb.DB{"orders": server.DB(t)})
	in.right()
	in.exec(server.DB(t), "CREATE DATABASE narrow ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	narrow := in.sources["orders"]
	narrow.DSN = strings.Replace(narrow.DSN, "/"+narrow.Name, "/narrow", 1)
	only(in.another(narrow))(t, in)
	in.wrong("encoding", "UTF8")
}

func TestDoctorReportsServersThatOnlySpeakMySQL(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateMariaDB(t, "--version=8.0.30-Vitess")
	(wrongSetUp{name: "Vitess", check: "product", remedy: "test with your own faults", make: onlyLogThere}).run(t, server.DB(t), func() testdb.DB { return server.DB(t) })
}

func TestDoctorKnowsTiDB(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateMariaDB(t, "--version=8.0.11-TiDB-v7.5.1")
	for mode, right := range map[string]bool{"pessimistic": true, "optimistic": false, "": false} {
		in := install(t, server.DB(t), map[string]testdb.DB{"orders": server.DB(t)})
		onlyLogThere(t, in)
		in.logDSN = in.log.Via(asTiDB(t, in.log.Addr(), mode)).DSN
		if right {
			in.right()
		} else {
			in.wrong("tidb_txn_mode", "pessimistic")
		}
	}
}

// asTiDB stands before a server and has it name TiDB's own setting among its variables.
func asTiDB(t *testing.T, server, mode string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	show := string(testproxy.MySQLQuery("SHOW VARIABLES"))
	all := testproxy.MySQLQuery("SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.SESSION_VARIABLES UNION ALL SELECT 'tidb_txn_mode', '" + mode + "'")
	var each sync.WaitGroup
	each.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			each.Go(func() {
				defer client.Close()
				to, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer to.Close()
				each.Go(func() { _, _ = io.Copy(client, to); _ = client.Close() })
				buf := make([]byte, 64<<10)
				for {
					n, err := client.Read(buf)
					if err != nil {
						return
					}
					said := buf[:n]
					if string(said) == show {
						said = all
					}
					if _, err := to.Write(said); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); each.Wait() })
	return l.Addr().String()
}

func TestDoctorFindsServersThatLoseWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ option, check, remedy string }{
		{"--innodb-doublewrite=0", "innodb_doublewrite", "ZFS"},
		{"--innodb-flush-method=nosync", "innodb_flush_method", "O_DIRECT"},
	} {
		server := testdb.PrivateMariaDB(t, c.option)
		(wrongSetUp{name: c.check, check: c.check, remedy: c.remedy, make: onlyLogThere}).run(t, server.DB(t), func() testdb.DB { return server.DB(t) })
	}
}
