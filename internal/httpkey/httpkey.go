// Package httpkey has the words that a caller and a service share about requests under an
// Idempotency-Key: headers, their values, and the types of problems. docs/http.md explains them.
package httpkey

// The headers.
const (
	// Key is the key of a request, and Replayed marks the answer to an earlier one under it.
	Key      = "Idempotency-Key"
	Replayed = "Idempotent-Replayed"
	// Kept marks an answer for all requests under the key.
	Kept = "Idempotency-Kept"
	// Scope is the scope of the keys. A service without keys does not send it.
	Scope = "Idempotency-Scope"
	// Undoes is the key of the request to undo, Sent the time of its first sending, and Applied whether
	// a 2xx was seen.
	Undoes  = "Idempotency-Undoes"
	Sent    = "Idempotency-Undoes-Sent"
	Applied = "Idempotency-Undoes-Applied"
	// Undone is the answer to an undo.
	Undone = "Idempotency-Undone"
	// MayUndo and Retention, in seconds, are answers to a question for the scope.
	MayUndo   = "Idempotency-Undo"
	Retention = "Idempotency-Key-Retention"
)

// SentFormat is the form of Sent.
const SentFormat = "2006-01-02T15:04:05.000Z"

// The values of Applied and MayUndo.
const (
	No  = "?0"
	Yes = "?1"
)

// The values of Undone.
const (
	Done    = "done"    // by the handler
	Nothing = "nothing" // nothing was applied, and never will be
	Already = "already"
)

// Types is the address of the explanations of problem types.
const Types = "https://github.com/bedsql/bed/blob/main/docs/http.md#"

// The problem types with a meaning for a call.
const (
	MissingKey      = "missing-key"
	MalformedKey    = "malformed-key"
	UnknownClient   = "unknown-client"
	UnreadableBody  = "unreadable-body"
	Outstanding     = "outstanding"
	OutcomeUnknown  = "outcome-unknown"
	TooManyRequests = "too-many-requests"
	KeyReused       = "key-reused"
	TryAgain        = "try-again"
	ResponseLost    = "response-lost"
	WasUndone       = "undone"
	UndoUnsupported = "undo-unsupported"
)
