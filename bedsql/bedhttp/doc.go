// Package bedhttp is net/http middleware for the Idempotency-Key header
// (draft-ietf-httpapi-idempotency-key-header-07): a request that a client sends twice is
// handled once, and answered twice with the same response.
//
// The middleware begins a local transaction under the key, which the handler takes from
// its context (Tx), and keeps the response in the key's receipt before it commits: after
// a crash there are the rows and the response, or neither. It rests on
// bedsql.WithIdempotencyKey and makes no table of its own. docs/http.md is the whole
// guide.
package bedhttp
