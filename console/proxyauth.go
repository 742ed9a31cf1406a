package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/ops"
)

// ProxyAuth is a log-in by a header of a proxy. Only requests from Config.TrustedProxies may carry
// the headers, which the proxy must set itself on every request.
type ProxyAuth struct {
	// Header holds the user's name, such as X-Forwarded-User; empty for no such log-in. The name
	// appears in the audit.
	Header string
	// Groups is a header with the user's groups, separated by commas; empty for none.
	Groups string
	// Roles are the roles of users by their names; with Groups, only those of groups. The highest
	// one counts.
	Roles map[string]Role
	// Default is the role of everybody else. The zero value allows nothing.
	Default Role
}

// validate returns one error naming every wrong field.
func (a *ProxyAuth) validate(trusted proxies) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("console: proxyAuth: "+format, args...))
	}
	if a.Header == "" {
		if a.Groups != "" || len(a.Roles) > 0 || a.Default != 0 {
			bad("header is missing: name the header with the user's name")
		}
		return errors.Join(errs...)
	}
	for _, name := range []string{a.Header, a.Groups} {
		if name != "" && !headerName.MatchString(name) {
			bad("header and groups must be names of headers, of letters, digits and dashes")
		}
	}
	if strings.EqualFold(a.Header, a.Groups) {
		bad("header and groups are the same header")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Roles)) {
		switch r := a.Roles[name]; {
		case name == "" || strings.TrimSpace(name) != name || a.Groups != "" && strings.Contains(name, ","):
			bad("roles: no user and no group is called %q", name)
		case r < Read || r > Reveal:
			bad("roles: %q: a role is read, operate or reveal", name)
		}
	}
	if a.Default > Reveal {
		bad("default is no role: it is read, operate or reveal")
	}
	if len(a.Roles) == 0 && a.Default == 0 {
		bad("nobody has a role: name some in roles, or a default")
	}
	if len(trusted) == 0 {
		bad("trustedProxies is empty: list the proxy's address, from which alone the header counts")
	}
	if slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		bad("trustedProxies includes every address, so that anybody could choose a name")
	}
	return errors.Join(errs...)
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

// arrived is the context key of the request as the console received it, before any header of a
// proxy changed it.
type arrived struct{}

func arriving(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), arrived{}, r))
}

var errProxyHeader = &failure{status: http.StatusUnauthorized, text: "The log-in of a proxy is refused: its header comes from an address outside trustedProxies, or is missing, repeated, empty, too long or unprintable."}

// who returns the user that the proxy names; the zero person without the header.
func (a *ProxyAuth) who(r *http.Request, trusted proxies) (person, error) {
	if a.Header == "" {
		return person{}, nil
	}
	names, groups := r.Header.Values(a.Header), r.Header.Values(a.Groups)
	if len(names)+len(groups) == 0 {
		return person{}, nil
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !trusted.trust(peer.Addr()) || len(names) != 1 || len(groups) > 1 || len(strings.Join(groups, "")) > maxGroups {
		return person{}, errProxyHeader
	}
	p := person{names[0], a.Default}
	if !nameable(p.Name) {
		return person{}, errProxyHeader
	}
	in := []string{p.Name}
	if a.Groups != "" {
		in = strings.Split(strings.Join(groups, ""), ",")
	}
	for _, name := range in {
		p.Role = max(p.Role, a.Roles[strings.TrimSpace(name)])
	}
	return p, nil
}

// maxGroups bounds the header with the groups, in bytes.
const maxGroups = 16 << 10

// nameable reports whether the audit can keep a name.
func nameable(name string) bool {
	return (ops.By{Who: name}).Check(ops.Retry) == nil && strings.TrimSpace(name) == name
}
