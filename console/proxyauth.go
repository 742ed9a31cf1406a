package console

import (
	"cmp"
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
	if a.Header == "" && a.Groups == "" && len(a.Roles) == 0 && a.Default == 0 {
		return nil
	}
	var errs []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf("console: proxyAuth: "+format, args...))
		}
	}
	wrong(a.Header == "", "header is missing: name the header with the user's name")
	wrong(!regexp.MustCompile(`^[A-Za-z0-9-]*$`).MatchString(a.Header+a.Groups) || strings.EqualFold(a.Header, a.Groups),
		"header and groups must be names of two headers, of letters, digits and dashes")
	for _, name := range slices.Sorted(maps.Keys(a.Roles)) {
		wrong(name == "" || strings.TrimSpace(name) != name || a.Groups != "" && strings.Contains(name, ","), "roles: no user and no group is called %q", name)
		wrong(a.Roles[name] < Read || a.Roles[name] > Reveal, "roles: %q: a role is read, operate or reveal", name)
	}
	wrong(a.Default > Reveal, "default is no role: it is read, operate or reveal")
	wrong(len(a.Roles) == 0 && a.Default == 0, "nobody has a role: name some in roles, or a default")
	wrong(len(trusted) == 0, "trustedProxies is empty: list the proxy's address, from which alone the header counts")
	wrong(slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Bits() == 0 }), "trustedProxies includes every address, so that anybody could choose a name")
	return errors.Join(errs...)
}

var errProxyHeader = &failure{status: http.StatusUnauthorized, text: "The log-in of a proxy is refused: its header comes from an address outside trustedProxies, or is missing, repeated, empty, too long or unprintable."}

// maxGroups bounds the header with the groups, in bytes.
const maxGroups = 16 << 10

// who returns the proxy's user, or the zero person without the headers.
func (a *ProxyAuth) who(r *http.Request, trusted proxies) (p person, err error) {
	if a.Header == "" {
		return p, nil
	}
	names, groups := r.Header.Values(a.Header), r.Header.Values(a.Groups)
	if len(names)+len(groups) == 0 {
		return p, nil
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !trusted.trust(peer.Addr()) || len(names) != 1 || !nameable(names[0]) || len(groups) > 1 || len(strings.Join(groups, "")) > maxGroups {
		return p, errProxyHeader
	}
	in := names
	if a.Groups != "" {
		in = strings.Split(strings.Join(groups, ""), ",")
	}
	p.Name = names[0]
	for _, name := range in {
		p.Role = max(p.Role, a.Roles[strings.TrimSpace(name)])
	}
	p.Role = cmp.Or(p.Role, a.Default)
	return p, nil
}

// nameable reports whether the audit can keep a name, which is not a token's.
func nameable(name string) bool {
	return (ops.By{Who: name}).Check(ops.Retry) == nil && strings.TrimSpace(name) == name && !strings.HasPrefix(name, "token ")
}
