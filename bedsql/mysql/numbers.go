package mysql

import "github.com/bedsql/bed/listener/delivery"

// states gives the meaning of an SQLSTATE's class to the errors that numbers
// does not list.
var states = map[string]delivery.Class{
	"08": delivery.Unknown,   // connection exception
	"0A": delivery.Refused,   // feature not supported
	"21": delivery.Refused,   // cardinality violation
	"22": delivery.Refused,   // data exception
	"23": delivery.Refused,   // integrity constraint violation
	"28": delivery.Refused,   // invalid authorization
	"3D": delivery.Refused,   // invalid catalog name
	"40": delivery.Retryable, // transaction rollback
	"42": delivery.Refused,   // syntax error or access rule violation
	"44": delivery.Refused,   // with check option violation
	"45": delivery.Refused,   // SIGNAL by a trigger of the user's
	"XA": delivery.Retryable, // XA transaction
}

// numbers is the table of server errors: those whose SQLSTATE class (mostly
// HY000, "general error") does not say enough or says something else. Names
// are those of the MySQL 8.4 error reference and, from 1900 to 1999 and 4000
// on, MariaDB's.
//
// https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
// https://mariadb.com/kb/en/mariadb-error-code-reference/
var numbers = map[uint16]delivery.Class{
	// A unique key holds the value already.
	1022: delivery.Duplicate, // ER_DUP_KEY
	1062: delivery.Duplicate, // ER_DUP_ENTRY
	1586: delivery.Duplicate, // ER_DUP_ENTRY_WITH_KEY_NAME
	1859: delivery.Duplicate, // ER_DUP_UNKNOWN_IN_INDEX

	// The connection ended, or the answer does not say whether the statement
	// was carried out.
	1053: delivery.Unknown, // ER_SERVER_SHUTDOWN
	1079: delivery.Unknown, // ER_SHUTDOWN_COMPLETE
	1080: delivery.Unknown, // ER_FORCING_CLOSE
	1152: delivery.Unknown, // ER_ABORTING_CONNECTION
	1155: delivery.Unknown, // ER_NET_READ_ERROR_FROM_PIPE
	1156: delivery.Unknown, // ER_NET_PACKETS_OUT_OF_ORDER
	1157: delivery.Unknown, // ER_NET_UNCOMPRESS_ERROR
	1158: delivery.Unknown, // ER_NET_READ_ERROR
	1159: delivery.Unknown, // ER_NET_READ_INTERRUPTED
	1160: delivery.Unknown, // ER_NET_ERROR_ON_WRITE
	1161: delivery.Unknown, // ER_NET_WRITE_INTERRUPTED
	1180: delivery.Unknown, // ER_ERROR_DURING_COMMIT
	1181: delivery.Unknown, // ER_ERROR_DURING_ROLLBACK
	1184: delivery.Unknown, // ER_NEW_ABORTING_CONNECTION
	1189: delivery.Unknown, // ER_SOURCE_NET_READ
	1190: delivery.Unknown, // ER_SOURCE_NET_WRITE
	1430: delivery.Unknown, // ER_QUERY_ON_FOREIGN_DATA_SOURCE (FEDERATED: the remote side may have applied it)
	1927: delivery.Unknown, // ER_CONNECTION_KILLED
	3169: delivery.Unknown, // ER_SESSION_WAS_KILLED
	4031: delivery.Unknown, // ER_CLIENT_INTERACTION_TIMEOUT

	// Not applied; another moment, session or server may do better. Most
	// numbers of this kind are HY000 and need no line: the lines here are for
	// those whose SQLSTATE says otherwise, and for the ones met every day.
	1020: delivery.Retryable, // ER_CHECKREAD
	1021: delivery.Retryable, // ER_DISK_FULL
	1037: delivery.Retryable, // ER_OUTOFMEMORY
	1040: delivery.Retryable, // ER_CON_COUNT_ERROR (08004)
	1041: delivery.Retryable, // ER_OUT_OF_RESOURCES
	1042: delivery.Retryable, // ER_BAD_HOST_ERROR (08S01)
	1043: delivery.Retryable, // ER_HANDSHAKE_ERROR (08S01)
	1047: delivery.Retryable, // ER_UNKNOWN_COM_ERROR (08S01; Galera: the node is not ready)
	1114: delivery.Retryable, // ER_RECORD_FILE_FULL
	1129: delivery.Retryable, // ER_HOST_IS_BLOCKED
	1135: delivery.Retryable, // ER_CANT_CREATE_THREAD
	1202: delivery.Retryable, // ER_REPLICA_THREAD
	1203: delivery.Retryable, // ER_TOO_MANY_USER_CONNECTIONS (42000)
	1205: delivery.Retryable, // ER_LOCK_WAIT_TIMEOUT
	1206: delivery.Retryable, // ER_LOCK_TABLE_FULL
	1213: delivery.Retryable, // ER_LOCK_DEADLOCK
	1218: delivery.Retryable, // ER_CONNECT_TO_SOURCE (08S01)
	1223: delivery.Retryable, // ER_CANT_UPDATE_WITH_READLOCK
	1226: delivery.Retryable, // ER_USER_LIMIT_REACHED (42000)
	1243: delivery.Retryable, // ER_UNKNOWN_STMT_HANDLER (a proxy changed servers)
	1290: delivery.Retryable, // ER_OPTION_PREVENTS_STATEMENT (read_only: a failover)
	1297: delivery.Retryable, // ER_GET_TEMPORARY_ERRMSG
	1317: delivery.Retryable, // ER_QUERY_INTERRUPTED (70100)
	1412: delivery.Retryable, // ER_TABLE_DEF_CHANGED
	1429: delivery.Retryable, // ER_CONNECT_TO_FOREIGN_DATA_SOURCE
	1461: delivery.Retryable, // ER_MAX_PREPARED_STMT_COUNT_REACHED (42000)
	1615: delivery.Retryable, // ER_NEED_REPREPARE
	1637: delivery.Retryable, // ER_TOO_MANY_CONCURRENT_TRXS
	1792: delivery.Retryable, // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION (25006: a failover)
	1836: delivery.Retryable, // ER_READ_ONLY_MODE
	1874: delivery.Retryable, // ER_INNODB_READ_ONLY
	1969: delivery.Retryable, // ER_STATEMENT_TIMEOUT (70100)
	3024: delivery.Retryable, // ER_QUERY_TIMEOUT
	3058: delivery.Retryable, // ER_USER_LOCK_DEADLOCK
	3101: delivery.Retryable, // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
	3168: delivery.Retryable, // ER_SERVER_ISNT_AVAILABLE
	3572: delivery.Retryable, // ER_LOCK_NOWAIT

	// Understood and refused, though the SQLSTATE is a general one.
	1031: delivery.Refused, // ER_ILLEGAL_HA
	1093: delivery.Refused, // ER_UPDATE_TABLE_USED
	1099: delivery.Refused, // ER_TABLE_NOT_LOCKED_FOR_WRITE
	1100: delivery.Refused, // ER_TABLE_NOT_LOCKED
	1111: delivery.Refused, // ER_INVALID_GROUP_FUNC_USE
	1130: delivery.Refused, // ER_HOST_NOT_PRIVILEGED
	1153: delivery.Refused, // ER_NET_PACKET_TOO_LARGE (08S01: read, and thrown away)
	1162: delivery.Refused, // ER_TOO_LONG_STRING
	1175: delivery.Refused, // ER_UPDATE_WITHOUT_KEY_IN_SAFE_MODE
	1193: delivery.Refused, // ER_UNKNOWN_SYSTEM_VARIABLE
	1210: delivery.Refused, // ER_WRONG_ARGUMENTS
	1221: delivery.Refused, // ER_WRONG_USAGE
	1229: delivery.Refused, // ER_GLOBAL_VARIABLE
	1238: delivery.Refused, // ER_INCORRECT_GLOBAL_LOCAL_VAR
	1263: delivery.Refused, // ER_WARN_NULL_TO_NOTNULL
	1265: delivery.Refused, // WARN_DATA_TRUNCATED (01000)
	1267: delivery.Refused, // ER_CANT_AGGREGATE_2COLLATIONS
	1270: delivery.Refused, // ER_CANT_AGGREGATE_3COLLATIONS
	1271: delivery.Refused, // ER_CANT_AGGREGATE_NCOLLATIONS
	1273: delivery.Refused, // ER_UNKNOWN_COLLATION
	1288: delivery.Refused, // ER_NON_UPDATABLE_TABLE
	1291: delivery.Refused, // ER_DUPLICATED_VALUE_IN_TYPE
	1295: delivery.Refused, // ER_UNSUPPORTED_PS
	1298: delivery.Refused, // ER_UNKNOWN_TIME_ZONE
	1300: delivery.Refused, // ER_INVALID_CHARACTER_STRING
	1301: delivery.Refused, // ER_WARN_ALLOWED_PACKET_OVERFLOWED
	1321: delivery.Refused, // ER_SP_NORETURNEND
	1347: delivery.Refused, // ER_WRONG_OBJECT
	1348: delivery.Refused, // ER_NONUPDATEABLE_COLUMN
	1356: delivery.Refused, // ER_VIEW_INVALID
	1362: delivery.Refused, // ER_TRG_CANT_CHANGE_ROW
	1363: delivery.Refused, // ER_TRG_NO_SUCH_ROW_IN_TRG
	1364: delivery.Refused, // ER_NO_DEFAULT_FOR_FIELD
	1366: delivery.Refused, // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
	1369: delivery.Refused, // ER_VIEW_CHECK_FAILED
	1393: delivery.Refused, // ER_VIEW_MULTIUPDATE
	1394: delivery.Refused, // ER_VIEW_NO_INSERT_FIELD_LIST
	1395: delivery.Refused, // ER_VIEW_DELETE_MERGE_VIEW
	1411: delivery.Refused, // ER_WRONG_VALUE_FOR_TYPE
	1418: delivery.Refused, // ER_BINLOG_UNSAFE_ROUTINE
	1419: delivery.Refused, // ER_BINLOG_CREATE_ROUTINE_NEED_SUPER
	1422: delivery.Refused, // ER_COMMIT_NOT_ALLOWED_IN_SF_OR_TRG
	1423: delivery.Refused, // ER_NO_DEFAULT_FOR_VIEW_FIELD
	1424: delivery.Refused, // ER_SP_NO_RECURSION
	1442: delivery.Refused, // ER_CANT_UPDATE_USED_TABLE_IN_SF_OR_TRG
	1443: delivery.Refused, // ER_VIEW_PREVENT_UPDATE
	1449: delivery.Refused, // ER_NO_SUCH_USER
	1456: delivery.Refused, // ER_SP_RECURSION_LIMIT
	1471: delivery.Refused, // ER_NON_INSERTABLE_TABLE
	1525: delivery.Refused, // ER_WRONG_VALUE
	1526: delivery.Refused, // ER_NO_PARTITION_FOR_GIVEN_VALUE
	1643: delivery.Refused, // ER_SIGNAL_NOT_FOUND
	1644: delivery.Refused, // ER_SIGNAL_EXCEPTION (any SQLSTATE: the user's own trigger spoke)
	1661: delivery.Refused, // ER_BINLOG_ROW_ENGINE_AND_STMT_ENGINE
	1662: delivery.Refused, // ER_BINLOG_ROW_MODE_AND_STMT_ENGINE
	1663: delivery.Refused, // ER_BINLOG_UNSAFE_AND_STMT_ENGINE
	1665: delivery.Refused, // ER_BINLOG_STMT_MODE_AND_ROW_ENGINE
	1666: delivery.Refused, // ER_BINLOG_ROW_INJECTION_AND_STMT_MODE
	1698: delivery.Refused, // ER_ACCESS_DENIED_NO_PASSWORD_ERROR
	1742: delivery.Refused, // ER_VALUES_IS_NOT_INT_TYPE_ERROR
	1748: delivery.Refused, // ER_ROW_DOES_NOT_MATCH_GIVEN_PARTITION_SET
	1785: delivery.Refused, // ER_GTID_UNSAFE_NON_TRANSACTIONAL_TABLE
	1786: delivery.Refused, // ER_GTID_UNSAFE_CREATE_SELECT
	1787: delivery.Refused, // ER_GTID_UNSAFE_CREATE_DROP_TEMPORARY_TABLE_IN_TRANSACTION
	1820: delivery.Refused, // ER_MUST_CHANGE_PASSWORD
	1862: delivery.Refused, // ER_MUST_CHANGE_PASSWORD_LOGIN
	1901: delivery.Refused, // ER_GENERATED_COLUMN_FUNCTION_IS_NOT_ALLOWED
	1906: delivery.Refused, // ER_WARNING_NON_DEFAULT_VALUE_FOR_GENERATED_COLUMN
	3098: delivery.Refused, // ER_BEFORE_DML_VALIDATION_ERROR
	3105: delivery.Refused, // ER_NON_DEFAULT_VALUE_FOR_GENERATED_COLUMN
	3118: delivery.Refused, // ER_ACCOUNT_HAS_BEEN_LOCKED
	3159: delivery.Refused, // ER_SECURE_TRANSPORT_REQUIRED
	3685: delivery.Refused, // ER_REGEXP_ILLEGAL_ARGUMENT
	3692: delivery.Refused, // ER_REGEXP_MISMATCHED_PAREN
	3819: delivery.Refused, // ER_CHECK_CONSTRAINT_VIOLATED
	4025: delivery.Refused, // ER_CONSTRAINT_FAILED
	4078: delivery.Refused, // ER_ILLEGAL_PARAMETER_DATA_TYPES2_FOR_OPERATION
	4079: delivery.Refused, // ER_ILLEGAL_PARAMETER_DATA_TYPE_FOR_OPERATION
	4151: delivery.Refused, // ER_ACCOUNT_HAS_BEEN_LOCKED (MariaDB)
}
