package sqltext

import "strings"

// keyword is a word known to this package, in capitals; empty for any other.
type keyword string

const words = `
ABORT ALTER ANALYSE ANALYZE AND AS ATOMIC ATTACH AUTOCOMMIT BACKUP BEGIN CASE CHAIN CHECK CHECKPOINT CHECKSUM CLOSE
CLUSTER COMMENT COMMIT CONCURRENT CONFLICT CONSTRAINTS CREATE CURRENT CYCLE DATA DEALLOCATE DECLARE DEFAULT DEFERRED
DEFINER DELAYED DELETE DESC DESCRIBE DETACH DETERMINISTIC DISCARD DISTINCT DO DROP DUMPFILE DUPLICATE ELSE END EVENT
EXCLUSIVE EXECUTE EXISTS EXPLAIN EXPORT EXTENDED FETCH FLUSH FOR FORMAT FROM FUNCTION GET GLOBAL GRANT HANDLER HAVING
HELP HIGH_PRIORITY IDENTITY IF IGNORE IMMEDIATE INSERT INSERT_ID INSTALL INTO INVOKER IS ISOLATION JOIN KEY
LAST_INSERT_ID LIMIT LOAD LOCAL LOCK LOOP LOW_PRIORITY MERGE MOVE NEXT NOT NULL OF ON ONLY OPTIMIZE OR ORDER OUTFILE
PACKAGE PARTITION PARTITIONS PASSWORD PERSIST PERSIST_ONLY PG_SETTINGS PG_TEMP PRAGMA PREPARE PREPARED PREVIOUS
PROCEDURE PURGE READ REASSIGN RECURSIVE REFRESH REINDEX RELEASE RENAME REPAIR REPEAT REPLACE RESET RETURNING REVOKE
ROLLBACK ROW SAVEPOINT SEARCH SECURITY SELECT SEQUENCE SESSION SET SHARE SHOW SQL START STATEMENT TABLE TABLES TEMP
TEMPORARY THEN TO TRAN TRANSACTION TRIGGER TRUE TRUNCATE UNINSTALL UNLOCK UPDATE USE VACUUM VALUE VALUES VERBOSE WHEN
WHERE WHILE WITH WORK XA
`

var keywords = func() map[string]keyword {
	all := map[string]keyword{
		// The clock, read without parentheses.
		"CURRENT_DATE": "CURRENT_TIMESTAMP", "CURRENT_TIME": "CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP": "CURRENT_TIMESTAMP",
		"LOCALTIME": "CURRENT_TIMESTAMP", "LOCALTIMESTAMP": "CURRENT_TIMESTAMP",
		"UTC_DATE": "CURRENT_TIMESTAMP", "UTC_TIME": "CURRENT_TIMESTAMP", "UTC_TIMESTAMP": "CURRENT_TIMESTAMP",
	}
	for _, word := range strings.Fields(words) {
		all[word] = keyword(word)
	}
	return all
}()

// isDML holds the one list of verbs that write rows. REPLACE counts only in flavors whose
// statements can begin with it.
func (k keyword) isDML(f Flavor) bool {
	switch k {
	case "INSERT", "UPDATE", "DELETE", "MERGE":
		return true
	case "REPLACE":
		return f == MySQL || f == SQLite
	}
	return false
}

// isQuery is for the verbs that begin a query.
func (k keyword) isQuery() bool { return k == "SELECT" || k == "VALUES" || k == "TABLE" }

// maxWord is the length of the longest word in any table here.
const maxWord = 32

// lookup finds the keyword of an unquoted word in any case.
func lookup(word string) keyword {
	kw, _ := find(keywords, word)
	return kw
}

// find looks up a word, in any case, in one of the tables here, whose words are in ASCII
// capitals.
func find[T any](table map[string]T, word string) (is T, ok bool) {
	if len(word) > maxWord {
		return is, false
	}
	var buf [maxWord]byte
	for i := range len(word) {
		c := word[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	is, ok = table[string(buf[:len(word)])]
	return is, ok
}

// call is the effect of a database's function on the session.
type call uint8

const (
	_ call = iota
	// callPins leaves state behind.
	callPins
	// callReads reads the session's state.
	callReads
	// callReadsBare reads it if called without arguments.
	callReadsBare
	// callSetConfig leaves state behind unless its last argument is true.
	callSetConfig
)

var calls = [...]map[string]call{
	MySQL: {
		"GET_LOCK": callPins, "RELEASE_LOCK": callPins, "RELEASE_ALL_LOCKS": callPins,
		"LAST_INSERT_ID": callReadsBare, "FOUND_ROWS": callReadsBare, "ROW_COUNT": callReadsBare,
		"CONNECTION_ID": callReadsBare, "LASTVAL": callReads,
	},
	Postgres: {
		"SET_CONFIG":       callSetConfig,
		"PG_ADVISORY_LOCK": callPins, "PG_ADVISORY_LOCK_SHARED": callPins,
		"PG_TRY_ADVISORY_LOCK": callPins, "PG_TRY_ADVISORY_LOCK_SHARED": callPins,
		"PG_ADVISORY_UNLOCK": callPins, "PG_ADVISORY_UNLOCK_SHARED": callPins,
		"PG_ADVISORY_UNLOCK_ALL": callPins,
		"CURRVAL":                callReads, "LASTVAL": callReadsBare, "PG_BACKEND_PID": callReadsBare,
	},
	SQLite: {
		"LOAD_EXTENSION":    callPins,
		"LAST_INSERT_ROWID": callReadsBare, "CHANGES": callReadsBare, "TOTAL_CHANGES": callReadsBare,
	},
}

// lookupCall returns the effect of calling the function name.
func lookupCall(f Flavor, name string) call {
	c, _ := find(calls[f], name)
	return c
}
