package console

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// The policy of every answer, errors included: nothing inline, nothing from
// elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// hosts are the accepted Host headers. Another site could make any other name point here.
type hosts struct {
	exact   map[string]bool // with a port, or without one where that is allowed
	anyPort map[string]bool
	// named: the configuration names some.
	named bool
}

func newHosts(c *Config) hosts {
	h := hosts{exact: map[string]bool{}, anyPort: map[string]bool{}, named: len(c.AllowedHosts) > 0}
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
	host, _, err := net.SplitHostPort(strings.ToLower(given))
	return h.own(given) || err == nil && h.anyPort[host]
}

// own reports whether an origin's host is the console's own, by its accepted spellings with the
// port.
func (h hosts) own(given string) bool {
	given = strings.ToLower(given)
	return h.exact[given] || h.anyPort[strings.Trim(given, "[]")]
}

// foreign reports whether a request is a possible change made by another site's page.
func (h hosts) foreign(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions && h.otherOrigin(r)
}

// otherOrigin reports whether a page of another origin made the request, even one of the same site.
// A typed address has no origin, and programs send neither header. A proxy may hide the Host from
// the console. Then Sec-Fetch-Site decides, because no page can set it. Once AllowedHosts has
// names, the Origin must be one of them.
func (h hosts) otherOrigin(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "none" && site != "same-origin" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return true
	}
	if strings.EqualFold(u.Host, r.Host) || h.own(u.Host) {
		return false
	}
	return site != "same-origin" || !isLoopback(u.Hostname()) && (h.named || !relayed(r))
}

// relayed reports whether a proxy has passed the request on. No browser sends these headers,
// or speaks HTTP/1.0 as nginx does by default.
func relayed(r *http.Request) bool {
	return !r.ProtoAtLeast(1, 1) || slices.ContainsFunc([]string{"Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"}, func(name string) bool { return r.Header.Get(name) != "" })
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// proxies are the trusted ones.
type proxies []netip.Prefix

func newProxies(given []string) (all proxies, err error) {
	for _, text := range given {
		p, perr := netip.ParsePrefix(text)
		if perr != nil {
			var a netip.Addr
			if a, perr = netip.ParseAddr(text); perr == nil {
				p = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
			}
		}
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("console: trustedProxies: %q is neither an address nor a network such as 10.0.0.0/8", text))
			continue
		}
		all = append(all, p)
	}
	return all, err
}

func (ps proxies) trust(a netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a.Unmap().WithZone("")) })
}

// forwarded returns the request as a trusted proxy received it: with the client's address, Host and
// scheme.
func (ps proxies) forwarded(r *http.Request) *http.Request {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !ps.trust(peer.Addr()) {
		return r
	}
	there := r.Clone(r.Context())
	// The nearest proxy wrote the last element.
	if host := last(r, "X-Forwarded-Host"); host != "" {
		there.Host = host
	}
	there.URL.Scheme = strings.ToLower(last(r, "X-Forwarded-Proto"))
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		client, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		there.RemoteAddr = netip.AddrPortFrom(client, 0).String()
		if !ps.trust(client) {
			break
		}
	}
	return there
}

// last returns the last element of a list header.
func last(r *http.Request, name string) string {
	all := strings.Join(r.Header.Values(name), ",")
	return strings.TrimSpace(all[strings.LastIndex(all, ",")+1:])
}
