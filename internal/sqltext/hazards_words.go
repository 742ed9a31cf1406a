package sqltext

// varies is how a function's result differs from one time to another.
type varies uint8

const (
	// variesRandom is for random numbers, generated ids and sequences.
	variesRandom varies = 1 << iota
	// variesClock is for the time.
	variesClock
	// variesBare: only called without arguments.
	variesBare
	// variesNow: SQLite's, when their time is 'now'.
	variesNow
)

var varyingFunctions = [...]map[string]varies{
	ANSI: {
		"NOW": variesClock, "SYSDATE": variesClock, "GETDATE": variesClock,
		"RAND": variesRandom, "RANDOM": variesRandom, "UUID": variesRandom, "NEWID": variesRandom,
		"GEN_RANDOM_UUID": variesRandom, "NEXTVAL": variesRandom,
	},
	MySQL: {
		"NOW": variesClock, "SYSDATE": variesClock, "CURDATE": variesClock, "CURTIME": variesClock,
		"UNIX_TIMESTAMP": variesClock | variesBare,
		"RAND":           variesRandom, "RANDOM_BYTES": variesRandom, "UUID": variesRandom, "UUID_SHORT": variesRandom,
		"UUID_V4": variesRandom, "UUID_V7": variesRandom, "SYS_GUID": variesRandom, "NEXTVAL": variesRandom,
	},
	Postgres: {
		"NOW": variesClock, "CLOCK_TIMESTAMP": variesClock, "STATEMENT_TIMESTAMP": variesClock,
		"TRANSACTION_TIMESTAMP": variesClock, "TIMEOFDAY": variesClock,
		"RANDOM": variesRandom, "RANDOM_NORMAL": variesRandom, "GEN_RANDOM_UUID": variesRandom,
		"GEN_RANDOM_BYTES": variesRandom, "GEN_SALT": variesRandom, "UUIDV4": variesRandom, "UUIDV7": variesRandom,
		"UUID_GENERATE_V1": variesRandom, "UUID_GENERATE_V1MC": variesRandom, "UUID_GENERATE_V4": variesRandom,
		"NEXTVAL": variesRandom, "TXID_CURRENT": variesRandom, "PG_CURRENT_XACT_ID": variesRandom,
	},
	SQLite: {
		"RANDOM": variesRandom, "RANDOMBLOB": variesRandom,
		"DATE": sqliteClock, "TIME": sqliteClock, "DATETIME": sqliteClock,
		"JULIANDAY": sqliteClock, "UNIXEPOCH": sqliteClock, "STRFTIME": variesClock | variesNow,
	},
}

const sqliteClock = variesClock | variesBare | variesNow

// lookupVaries finds how the function name varies, with the conditions.
func lookupVaries(f Flavor, name string) varies {
	if len(name) > maxWord || int(f) >= len(varyingFunctions) {
		return 0
	}
	var buf [maxWord]byte
	return varyingFunctions[f][string(upper(&buf, name))]
}

// wrapping are functions f for which f(f(x)) = f(x), with the other arguments
// the same.
var wrapping = map[string]wrap{
	"COALESCE": wrapAny, "IFNULL": wrapAny, "NVL": wrapAny,
	"GREATEST": wrapAny, "LEAST": wrapAny, "MAX": wrapAny, "MIN": wrapAny,
	"LAST_INSERT_ID": wrapFirst,
	"LOWER":          wrapFirst, "UPPER": wrapFirst, "TRIM": wrapFirst, "LTRIM": wrapFirst, "RTRIM": wrapFirst,
	"ABS": wrapFirst, "CEIL": wrapFirst, "CEILING": wrapFirst, "FLOOR": wrapFirst, "ROUND": wrapFirst,
	"JSON_SET": wrapFirst, "JSONB_SET": wrapFirst, "JSON_REPLACE": wrapFirst,
}

func lookupWrap(name string) wrap {
	if len(name) > maxWord {
		return wrapNothing
	}
	var buf [maxWord]byte
	return wrapping[string(upper(&buf, name))]
}
