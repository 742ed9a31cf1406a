package doctor

import (
	"net"
	"net/url"
	"strings"
)

// lookAtBroker examines the DSN of a message broker.
func lookAtBroker(p *patient) {
	scheme, rest, _ := strings.Cut(p.DSN, "://")
	rest, query, _ := strings.Cut(rest, "?")
	at := strings.LastIndex(rest, "@")
	q, _ := url.ParseQuery(query)
	password := at >= 0 && strings.Contains(rest[:at], ":") || p.Access.HasPassword()
	if password && !p.Access.HasTLS() && (scheme == "amqp" || scheme == "nats" || scheme == "kafka" && q.Get("tls") != "true") && (scheme == "kafka" || !isLoopback(rest[at+1:])) {
		p.find("password", "its password is sent without TLS: whoever sees the network can read it",
			map[string]string{"kafka": "add tls=true to the DSN, or give the data source tls", "amqp": "use amqps://", "nats": "use tls://, or give the data source tls"}[scheme])
	}
	if p.Driver == "nats" {
		p.x.add(&p.x.report.Notes, "%s: by default JetStream confirms a message before it is on disk (sync_interval is two minutes), and a power failure loses it: set sync_interval: always, or have replicas that do not fail together", p.where)
	}
}

// lookAtService examines the base URL of an HTTP service.
func lookAtService(p *patient) {
	base, err := url.Parse(p.DSN)
	if err == nil && base.Scheme == "http" && p.Access.HasCredentials() && !isLoopback(base.Host) {
		p.find("password", "its credentials are sent without TLS: whoever sees the network can read them", "give it a base URL with https://")
	}
	p.x.add(&p.x.report.Notes, "%s: a call is handled exactly once if the service is behind bedhttp, or recognizes the header Idempotency-Key in another way; else it may be handled several times", p.where)
}

// isLoopback reports whether an address is this machine's.
func isLoopback(address string) bool {
	host := strings.Split(address, "/")[0]
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
