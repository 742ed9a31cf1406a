package sqltext

import "strings"

// Publish begins the text of a message, Call that of a call.
const (
	Publish = "PUBLISH "
	Call    = "CALL "
)

// PublishKey is the name of the parameter for a message's order key, CallKey for a call's idempotency
// key. CallRequest marks a key that names a request of the application, CallScoped a service that
// recognizes keys.
const (
	PublishKey  = "key"
	CallKey     = "key"
	CallRequest = "request"
	CallScoped  = "scoped"
)

// write reports whether text is a write of f, which is no SQL.
func (f Flavor) write(text string) bool {
	name, ok := strings.CutPrefix(text, [...]string{Messages: Publish, Calls: Call}[f])
	return ok && name != ""
}
