package console

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"

	"github.com/bedsql/bed/internal/slogger"
)

// Role is the rights of a user. Each role includes those before it. The zero value has no rights.
type Role uint8

const (
	// Read sees everything but parameters.
	Read Role = iota + 1
	// Operate also acts: retries, parks, discards, tries, and controls data sources.
	Operate
	// Reveal also sees parameters, and the values in error texts. Each look is audited. It also
	// amends: whoever has it can have the job run any DML that the job's account may run.
	Reveal
)

var roleNames = [...]string{"none", "read", "operate", "reveal"}

// String is the role's name in the configuration.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return roleNames[0]
}

// UnmarshalText reads read, operate or reveal.
func (r *Role) UnmarshalText(name []byte) error {
	i := slices.Index(roleNames[:], string(name))
	if i <= 0 {
		return errors.New("a role is read, operate or reveal")
	}
	*r = Role(i)
	return nil
}

// User is a person with a password (Basic authentication), on pages and in the API.
type User struct {
	// Name appears in the audit; it holds no colon and no control character.
	Name string
	// PasswordHash is bcrypt's, such as `htpasswd -nbB` writes it. A password in
	// its place is refused.
	PasswordHash string
	Role         Role
}

// Token is a program with a bearer token.
type Token struct {
	// Name appears in the audit.
	Name string
	// TokenHash is the token's SHA-256, in lower-case hexadecimal digits.
	TokenHash string
	Role      Role
}

// Config is the configuration of a console.
type Config struct {
	// Listen is the console's address, host:port. On a loopback address, it accepts the Host
	// headers of loopback with its port, and without any log-in (Users, Tokens, ProxyAuth or
	// Authenticate) every user is the local operator with all roles. Elsewhere, a log-in is
	// required, also if Listen is empty because an application mounts the console.
	Listen string
	// AllowedHosts are further accepted Host headers: names with or without a port. A name without
	// a port is accepted with any.
	AllowedHosts []string
	Users        []User
	Tokens       []Token
	// ProxyAuth lets a proxy log users in.
	ProxyAuth ProxyAuth
	// Authenticate lets an application log users in, by a session or a value in the request's
	// context: it returns the name for the audit, and the role; zero allows nothing. For an empty
	// name the other log-ins count. Calls are concurrent. Default nil.
	Authenticate func(*http.Request) (user string, role Role)
	// BasePath is where a proxy or an application serves the console, such as "/bed"; empty
	// for the root. Requests may come with it or without.
	BasePath string
	// TrustedProxies are the addresses and networks of trusted proxies, such as "10.0.0.0/8". Only
	// their X-Forwarded-Host, X-Forwarded-Proto and X-Forwarded-For headers count, and those of
	// ProxyAuth.
	TrustedProxies []string
	// Metrics is served at /metrics; nil for nothing there.
	Metrics http.Handler
	// OpenMetrics serves /metrics without a log-in. Otherwise it requires the role read if a log-in
	// is configured.
	OpenMetrics bool
	// Logger takes what goes wrong. Default: logrus.StandardLogger().
	Logger logrus.FieldLogger
	// Slog, a *slog.Logger, takes it instead of Logger. Default: Logger.
	Slog slogger.Logger
}

// Validate returns one error naming every wrong field, without values that may be secrets; nil for
// a valid configuration.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("console: "+format, args...)) }
	if c.Listen != "" {
		if _, port, err := net.SplitHostPort(c.Listen); err != nil {
			bad("listen must be host:port, such as 127.0.0.1:8390")
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			bad("listen: the port must be a number from 0 to 65535")
		}
	}
	seen := map[string]bool{}
	name := func(what, name string, role Role) bool {
		switch {
		case name == "":
			bad("a %s has no name", what)
		case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == ':' }):
			bad("a %s's name holds a colon or a control character", what)
		case seen[what+name]:
			bad("the %s %q is given twice", what, name)
		case role < Read || role > Reveal:
			bad("%s %q: a role is read, operate or reveal", what, name)
		default:
			seen[what+name] = true
			return true
		}
		return false
	}
	for _, u := range c.Users {
		if !name("user", u.Name, u.Role) {
			continue
		}
		if cost, err := bcrypt.Cost([]byte(u.PasswordHash)); err != nil {
			bad("user %q: passwordHash is no bcrypt hash: make one with htpasswd -nbB %s PASSWORD, without the name before the colon", u.Name, u.Name)
		} else if cost > maxCost {
			bad("user %q: the cost of passwordHash is %d, which takes too long at each log-in: at most %d", u.Name, cost, maxCost)
		}
	}
	for _, t := range c.Tokens {
		if !name("token", t.Name, t.Role) {
			continue
		}
		switch sum, err := hex.DecodeString(t.TokenHash); {
		case err != nil || len(sum) != 32 || t.TokenHash != strings.ToLower(t.TokenHash):
			bad("token %q: tokenHash must be the 64 lower-case hexadecimal digits of the token's SHA-256", t.Name)
		case [32]byte(sum) == hashOf(""):
			bad("token %q: tokenHash is that of the empty token", t.Name)
		}
	}
	for _, h := range c.AllowedHosts {
		if strings.TrimSpace(h) != h || h == "" || strings.ContainsAny(h, "/@*?# ") {
			bad("allowedHosts: %q is not a host, with or without a port", h)
		}
	}
	if base := strings.TrimSuffix(c.BasePath, "/"); base != "" && (!plainPath.MatchString(base) || path.Clean(base) != base) {
		bad("basePath must be a path such as /bed")
	} else if first, _, _ := strings.Cut(strings.TrimPrefix(base, "/"), "/"); isOwnPath(first) {
		bad("basePath must not begin with /%s, which is a path of the console", first)
	}
	trusted, err := newProxies(c.TrustedProxies)
	errs = append(errs, err, c.ProxyAuth.validate(trusted))
	if host, _, err := net.SplitHostPort(c.Listen); c.open() && (err != nil || !isLoopback(host)) {
		where := cmp.Or(c.Listen, "an unknown address")
		bad("listen is %s, which others can reach, and there are neither users nor tokens: listen on 127.0.0.1, or say who may log in", where)
	}
	return errors.Join(errs...)
}

// plainPath matches paths that need no escaping in links, cookies and proxies.
var plainPath = regexp.MustCompile(`^(/[\w.~-]+)+$`)

// isOwnPath reports whether a path of the console begins with a name.
func isOwnPath(first string) bool {
	if first == "" {
		return false
	}
	all := append(routes(&site{}), route{path: "/logs/"})
	return slices.ContainsFunc(all, func(r route) bool { return r.path == "/"+first || strings.HasPrefix(r.path, "/"+first+"/") })
}

// open reports whether there is no log-in.
func (c Config) open() bool {
	return len(c.Users) == 0 && len(c.Tokens) == 0 && c.ProxyAuth.Header == "" && c.Authenticate == nil
}
