// Package bedhttp is net/http middleware for the Idempotency-Key header
// (draft-ietf-httpapi-idempotency-key-header-07). A request that a client sends twice is handled
// once and gets the same response twice.
//
// The middleware begins a local transaction under the key. The handler takes it from its context
// (Tx). The middleware keeps the response in the key's receipt before it commits, so after a crash
// there are the rows and the response, or neither. It uses bedsql.WithIdempotencyKey and makes no
// table of its own. docs/http.md is the whole guide.
package bedhttp
