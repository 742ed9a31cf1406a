// Package console is the web console and the JSON API of a transaction log, for
// the operator: what is stuck and why, what a retry would do, and the actions that
// clear it. bed-job serves it; an application mounts [New] as an [http.Handler].
//
// Every request passes the same gate before anything is looked at: the security
// headers, the Host and Origin rules, who asks, and the role that the route wants.
package console
