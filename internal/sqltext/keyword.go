package sqltext

// keyword is a word that this package has to know; 0 is any other.
type keyword uint8

const (
	_ keyword = iota
	kwAbort
	kwAll
	kwAlter
	kwAnalyse
	kwAnalyze
	kwAnd
	kwAs
	kwAtomic
	kwAttach
	kwAutocommit
	kwBackup
	kwBegin
	kwCase
	kwChain
	kwCheck
	kwCheckpoint
	kwChecksum
	kwClock
	kwClose
	kwCluster
	kwComment
	kwCommit
	kwConcurrent
	kwConflict
	kwConstraints
	kwCreate
	kwCurrent
	kwCycle
	kwData
	kwDeallocate
	kwDeclare
	kwDefault
	kwDeferred
	kwDefiner
	kwDelayed
	kwDelete
	kwDesc
	kwDescribe
	kwDetach
	kwDeterministic
	kwDiscard
	kwDistinct
	kwDo
	kwDrop
	kwDumpfile
	kwDuplicate
	kwElse
	kwEnd
	kwEvent
	kwExclusive
	kwExecute
	kwExists
	kwExplain
	kwExport
	kwExtended
	kwFalse
	kwFetch
	kwFlush
	kwFor
	kwFormat
	kwFrom
	kwFunction
	kwGet
	kwGlobal
	kwGrant
	kwHandler
	kwHaving
	kwHelp
	kwHighPriority
	kwIdentity
	kwIf
	kwIgnore
	kwImmediate
	kwInsert
	kwInsertID
	kwInstall
	kwInto
	kwInvoker
	kwIs
	kwIsolation
	kwJoin
	kwKey
	kwLastInsertID
	kwLimit
	kwLoad
	kwLocal
	kwLock
	kwLoop
	kwLowPriority
	kwMaterialized
	kwMerge
	kwMove
	kwNext
	kwNo
	kwNot
	kwNull
	kwOf
	kwOff
	kwOn
	kwOnly
	kwOptimize
	kwOr
	kwOrder
	kwOutfile
	kwPackage
	kwPartition
	kwPartitions
	kwPassword
	kwPersist
	kwPersistOnly
	kwPgSettings
	kwPgTemp
	kwPragma
	kwPrepare
	kwPrepared
	kwPrevious
	kwProcedure
	kwPurge
	kwRead
	kwReassign
	kwRecursive
	kwRefresh
	kwReindex
	kwRelease
	kwRename
	kwRepair
	kwRepeat
	kwReplace
	kwReset
	kwReturning
	kwRevoke
	kwRollback
	kwRow
	kwSavepoint
	kwSearch
	kwSecurity
	kwSelect
	kwSequence
	kwSession
	kwSet
	kwShare
	kwShow
	kwSQL
	kwStart
	kwStatement
	kwTable
	kwTables
	kwTemp
	kwTemporary
	kwThen
	kwTo
	kwTran
	kwTransaction
	kwTrigger
	kwTrue
	kwTruncate
	kwUninstall
	kwUnlock
	kwUnlogged
	kwUpdate
	kwUse
	kwVacuum
	kwValue
	kwValues
	kwVerbose
	kwView
	kwWhen
	kwWhere
	kwWhile
	kwWith
	kwWork
	kwXA
)

var keywords = map[string]keyword{
	"ABORT": kwAbort, "ALL": kwAll, "ALTER": kwAlter, "ANALYSE": kwAnalyse, "ANALYZE": kwAnalyze,
	"AND": kwAnd, "AS": kwAs, "ATOMIC": kwAtomic, "ATTACH": kwAttach, "AUTOCOMMIT": kwAutocommit,
	"BACKUP": kwBackup, "BEGIN": kwBegin,
	"CASE": kwCase, "CHAIN": kwChain, "CHECK": kwCheck, "CHECKPOINT": kwCheckpoint, "CHECKSUM": kwChecksum,
	"CLOSE": kwClose, "CLUSTER": kwCluster, "COMMENT": kwComment, "COMMIT": kwCommit,
	"CONCURRENT": kwConcurrent, "CONFLICT": kwConflict, "CONSTRAINTS": kwConstraints, "CREATE": kwCreate,
	"CURRENT": kwCurrent, "CYCLE": kwCycle,
	"DATA": kwData, "DEALLOCATE": kwDeallocate, "DECLARE": kwDeclare, "DEFAULT": kwDefault,
	"DEFERRED": kwDeferred, "DEFINER": kwDefiner, "DELAYED": kwDelayed, "DELETE": kwDelete, "DESC": kwDesc,
	"DESCRIBE": kwDescribe, "DETACH": kwDetach, "DETERMINISTIC": kwDeterministic, "DISCARD": kwDiscard,
	"DISTINCT": kwDistinct, "DO": kwDo, "DROP": kwDrop, "DUMPFILE": kwDumpfile, "DUPLICATE": kwDuplicate,
	"ELSE": kwElse, "END": kwEnd, "EVENT": kwEvent, "EXCLUSIVE": kwExclusive, "EXECUTE": kwExecute,
	"EXISTS": kwExists, "EXPLAIN": kwExplain, "EXPORT": kwExport, "EXTENDED": kwExtended,
	"FALSE": kwFalse, "FETCH": kwFetch, "FLUSH": kwFlush, "FOR": kwFor, "FORMAT": kwFormat, "FROM": kwFrom,
	"FUNCTION": kwFunction,
	"GET":      kwGet, "GLOBAL": kwGlobal, "GRANT": kwGrant,
	"HANDLER": kwHandler, "HAVING": kwHaving, "HELP": kwHelp, "HIGH_PRIORITY": kwHighPriority,
	"IDENTITY": kwIdentity, "IF": kwIf, "IGNORE": kwIgnore, "IMMEDIATE": kwImmediate, "INSERT": kwInsert,
	"INSERT_ID": kwInsertID, "INSTALL": kwInstall, "INTO": kwInto, "INVOKER": kwInvoker, "IS": kwIs,
	"ISOLATION":      kwIsolation,
	"JOIN":           kwJoin,
	"KEY":            kwKey,
	"LAST_INSERT_ID": kwLastInsertID, "LIMIT": kwLimit, "LOAD": kwLoad, "LOCAL": kwLocal, "LOCK": kwLock,
	"LOOP": kwLoop, "LOW_PRIORITY": kwLowPriority,
	"MATERIALIZED": kwMaterialized, "MERGE": kwMerge, "MOVE": kwMove,
	"NEXT": kwNext, "NO": kwNo, "NOT": kwNot, "NULL": kwNull,
	"OF": kwOf, "OFF": kwOff, "ON": kwOn, "ONLY": kwOnly, "OPTIMIZE": kwOptimize, "OR": kwOr,
	"ORDER": kwOrder, "OUTFILE": kwOutfile,
	"PACKAGE": kwPackage, "PARTITION": kwPartition, "PARTITIONS": kwPartitions, "PASSWORD": kwPassword,
	"PERSIST": kwPersist, "PERSIST_ONLY": kwPersistOnly, "PG_SETTINGS": kwPgSettings, "PG_TEMP": kwPgTemp,
	"PRAGMA":  kwPragma,
	"PREPARE": kwPrepare, "PREPARED": kwPrepared, "PREVIOUS": kwPrevious, "PROCEDURE": kwProcedure,
	"PURGE": kwPurge,
	"READ":  kwRead, "REASSIGN": kwReassign, "RECURSIVE": kwRecursive, "REFRESH": kwRefresh,
	"REINDEX": kwReindex, "RELEASE": kwRelease, "RENAME": kwRename, "REPAIR": kwRepair, "REPEAT": kwRepeat,
	"REPLACE": kwReplace, "RESET": kwReset, "RETURNING": kwReturning, "REVOKE": kwRevoke,
	"ROLLBACK": kwRollback, "ROW": kwRow,
	"SAVEPOINT": kwSavepoint, "SEARCH": kwSearch, "SECURITY": kwSecurity, "SELECT": kwSelect,
	"SEQUENCE": kwSequence, "SESSION": kwSession, "SET": kwSet, "SHARE": kwShare, "SHOW": kwShow,
	"SQL": kwSQL, "START": kwStart, "STATEMENT": kwStatement,
	"TABLE": kwTable, "TABLES": kwTables, "TEMP": kwTemp, "TEMPORARY": kwTemporary, "THEN": kwThen,
	"TO": kwTo, "TRAN": kwTran, "TRANSACTION": kwTransaction, "TRIGGER": kwTrigger, "TRUE": kwTrue,
	"TRUNCATE":  kwTruncate,
	"UNINSTALL": kwUninstall, "UNLOCK": kwUnlock, "UNLOGGED": kwUnlogged, "UPDATE": kwUpdate, "USE": kwUse,
	"VACUUM": kwVacuum, "VALUE": kwValue, "VALUES": kwValues, "VERBOSE": kwVerbose, "VIEW": kwView,
	"WHEN": kwWhen, "WHERE": kwWhere, "WHILE": kwWhile, "WITH": kwWith, "WORK": kwWork,
	"XA": kwXA,

	// The clock, read without parentheses.
	"CURRENT_DATE": kwClock, "CURRENT_TIME": kwClock, "CURRENT_TIMESTAMP": kwClock,
	"LOCALTIME": kwClock, "LOCALTIMESTAMP": kwClock,
	"UTC_DATE": kwClock, "UTC_TIME": kwClock, "UTC_TIMESTAMP": kwClock,
}

// isDML is the one list of the verbs that write rows. REPLACE is one only
// where a statement can begin with it.
func (k keyword) isDML(f Flavor) bool {
	switch k {
	case kwInsert, kwUpdate, kwDelete, kwMerge:
		return true
	case kwReplace:
		return f == MySQL || f == SQLite
	}
	return false
}

// isQuery is for the verbs that begin a query.
func (k keyword) isQuery() bool { return k == kwSelect || k == kwValues || k == kwTable }

// maxWord is the length of the longest word that any table here knows.
const maxWord = 32

// lookup finds the keyword of an unquoted word in any case.
func lookup(word string) keyword {
	if len(word) > maxWord {
		return 0
	}
	var buf [maxWord]byte
	return keywords[string(upper(&buf, word))]
}

// upper writes word in ASCII capitals to buf, which must be long enough.
func upper(buf *[maxWord]byte, word string) []byte {
	for i := range len(word) {
		c := word[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	return buf[:len(word)]
}

// call is what calling a database's function means for the session.
type call uint8

const (
	_ call = iota
	// callPins leaves state behind.
	callPins
	// callReads reads the session's state.
	callReads
	// callReadsBare reads it when called without arguments.
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

// lookupCall finds what calling the function name means.
func lookupCall(f Flavor, name string) call {
	if len(name) > maxWord || int(f) >= len(calls) {
		return 0
	}
	var buf [maxWord]byte
	return calls[f][string(upper(&buf, name))]
}
