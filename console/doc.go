// Package console is the web console and the JSON API of a transaction log. It shows an operator
// stuck writes with the reasons, tries them, and offers the actions to clear them. bed-job serves
// it; an application mounts [New] as an [http.Handler].
//
// Every request passes the same gate first: security headers, Host and Origin rules, log-in, and
// the role of its route.
package console
