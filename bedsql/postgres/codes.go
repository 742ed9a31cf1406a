package postgres

import "github.com/bedsql/bed/listener/delivery"

// codes is the table of SQLSTATEs that mean something else than their class,
// or whose class does not say.
//
// https://www.postgresql.org/docs/current/errcodes-appendix.html
var codes = map[string]delivery.Class{
	"23505": delivery.Duplicate, // unique_violation

	"25006": delivery.Retryable, // read_only_sql_transaction (a failover)
	"25P02": delivery.Retryable, // in_failed_sql_transaction
	"25P03": delivery.Retryable, // idle_in_transaction_session_timeout
	"25P04": delivery.Unknown,   // transaction_timeout
	"26000": delivery.Retryable, // invalid_sql_statement_name (a pooler changed servers)
	"40002": delivery.Refused,   // transaction_integrity_constraint_violation
	"40003": delivery.Unknown,   // statement_completion_unknown
	"42P05": delivery.Retryable, // duplicate_prepared_statement (a pooler changed servers)
	"55000": delivery.Refused,   // object_not_in_prerequisite_state (a view that takes no writes)
	"55P02": delivery.Refused,   // cant_change_runtime_param
	"55P04": delivery.Refused,   // unsafe_new_enum_value_usage
	"57014": delivery.Retryable, // query_canceled (also statement_timeout)
	"57P01": delivery.Unknown,   // admin_shutdown
	"57P02": delivery.Unknown,   // crash_shutdown
	"57P03": delivery.Retryable, // cannot_connect_now
	"57P04": delivery.Unknown,   // database_dropped
	"57P05": delivery.Unknown,   // idle_session_timeout
	"HV00N": delivery.Retryable, // fdw_unable_to_establish_connection
}

// classes gives the meaning of a class to the SQLSTATEs that codes does not
// list.
var classes = map[string]delivery.Class{
	"02": delivery.Refused,   // no data (only a function that raises it)
	"08": delivery.Unknown,   // connection exception
	"09": delivery.Refused,   // triggered action exception
	"0A": delivery.Refused,   // feature not supported
	"0B": delivery.Refused,   // invalid transaction initiation
	"0F": delivery.Refused,   // locator exception
	"0L": delivery.Refused,   // invalid grantor
	"0P": delivery.Refused,   // invalid role specification
	"0Z": delivery.Refused,   // diagnostics exception
	"10": delivery.Refused,   // XQuery error
	"20": delivery.Refused,   // case not found
	"21": delivery.Refused,   // cardinality violation
	"22": delivery.Refused,   // data exception
	"23": delivery.Refused,   // integrity constraint violation (23P01: exclusion)
	"24": delivery.Refused,   // invalid cursor state
	"25": delivery.Refused,   // invalid transaction state
	"27": delivery.Refused,   // triggered data change violation
	"28": delivery.Refused,   // invalid authorization specification
	"2B": delivery.Refused,   // dependent privilege descriptors still exist
	"2D": delivery.Refused,   // invalid transaction termination
	"2F": delivery.Refused,   // SQL routine exception
	"34": delivery.Refused,   // invalid cursor name
	"38": delivery.Refused,   // external routine exception
	"39": delivery.Refused,   // external routine invocation exception
	"3B": delivery.Refused,   // savepoint exception
	"3D": delivery.Refused,   // invalid catalog name
	"3F": delivery.Refused,   // invalid schema name
	"40": delivery.Retryable, // transaction rollback (serialization failure, deadlock)
	"42": delivery.Refused,   // syntax error or access rule violation
	"44": delivery.Refused,   // WITH CHECK OPTION violation
	"53": delivery.Retryable, // insufficient resources (53300: too many connections)
	"54": delivery.Refused,   // program limit exceeded
	"55": delivery.Retryable, // object not in prerequisite state (55P03: lock not available)
	"57": delivery.Retryable, // operator intervention
	"58": delivery.Retryable, // system error
	"72": delivery.Retryable, // snapshot failure
	"F0": delivery.Retryable, // configuration file error
	"HV": delivery.Unknown,   // foreign data wrapper error (the remote side may have applied it)
	"P0": delivery.Refused,   // PL/pgSQL error (P0001: RAISE)
	"XX": delivery.Retryable, // internal error
}
