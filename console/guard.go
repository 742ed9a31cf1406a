package console

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// The policy of every answer, errors included: nothing inline, nothing from
// elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secure sets what each answer carries, whoever asks.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// hosts are the Host headers that are answered; any other may be a name that
// somebody else's page made to point here.
type hosts struct {
	exact   map[string]bool // with a port, or without one where that is allowed
	anyPort map[string]bool
}

func newHosts(c *Config) hosts {
	h := hosts{exact: map[string]bool{}, anyPort: map[string]bool{}}
	if host, port, err := net.SplitHostPort(c.Listen); err == nil {
		names := []string{"127.0.0.1", "::1", "localhost"}
		if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
			names = append(names, strings.ToLower(host))
		}
		for _, name := range names {
			h.exact[net.JoinHostPort(name, port)] = true
			if port == "80" || port == "443" { // which browsers leave out
				h.exact[name], h.exact["["+name+"]"] = true, true
			}
		}
	}
	for _, allowed := range c.AllowedHosts {
		allowed = strings.ToLower(allowed)
		if host, port, err := net.SplitHostPort(allowed); err == nil {
			h.exact[net.JoinHostPort(host, port)] = true
			continue
		}
		h.anyPort[strings.Trim(allowed, "[]")] = true
	}
	return h
}

func (h hosts) allow(given string) bool {
	given = strings.ToLower(given)
	if h.exact[given] || h.anyPort[strings.Trim(given, "[]")] {
		return true
	}
	host, _, err := net.SplitHostPort(given)
	return err == nil && h.anyPort[host]
}

// foreign reports whether a request that may change something was made by another site's page.
func foreign(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions && otherOrigin(r)
}

// otherOrigin reports whether a page of another origin, of the same site too, made the
// request. It also believes an Origin that contradicts a friendly Sec-Fetch-Site. A typed
// address has none, and programs send neither header.
func otherOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host)
}
