// Package call calls an HTTP service as bedsql writes rows. Each call is an entry of the log before it
// is sent, and has an Idempotency-Key of its own: a service behind package bedhttp handles it once.
package call
