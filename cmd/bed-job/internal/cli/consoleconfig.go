package cli

import (
	"errors"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/bedsql/bed/console"
)

// DefaultListen is where `bed-job console` listens when its section says nothing.
const DefaultListen = "127.0.0.1:8390"

// A consoleConfig is what the section console says. run serves a console only if
// it says where.
type consoleConfig struct {
	console.Config
	at entry
}

// consoleSection reads the section console.
type consoleSection struct{ *decoder }

func (d consoleSection) read(e entry, c *consoleConfig) {
	c.at = e
	before := len(d.problems)
	ok := d.fields(e.at, e.node, e.key, map[string]func(entry){
		"listen": func(f entry) { c.Listen, _ = d.text(f) },
		"allowedHosts": func(f entry) {
			for _, n := range d.list(f) {
				if host, ok := d.text(entry{key: f.key, at: f.at, node: n}); ok {
					c.AllowedHosts = append(c.AllowedHosts, host)
				}
			}
		},
		"users": func(f entry) {
			for _, n := range d.list(f) {
				var u console.User
				if d.person(f, n, "a user", "passwordHash", &u.Name, &u.PasswordHash, &u.Role) {
					c.Users = append(c.Users, u)
				}
			}
		},
		"tokens": func(f entry) {
			for _, n := range d.list(f) {
				var t console.Token
				if d.person(f, n, "a token", "tokenHash", &t.Name, &t.TokenHash, &t.Role) {
					c.Tokens = append(c.Tokens, t)
				}
			}
		},
	})
	if ok && len(d.problems) == before {
		d.check(c)
	}
}

// check lets the console itself judge what was read.
func (d consoleSection) check(c *consoleConfig) {
	judged := c.Config
	if judged.Listen == "" {
		judged.Listen = DefaultListen
	}
	if err := judged.Validate(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			d.fail(c.at.at, "%s", strings.TrimPrefix(line, "console: "))
		}
	}
}

// person reads {name, <hash>, role}.
func (d consoleSection) person(e entry, n ast.Node, what, hash string, name, sum *string, role *console.Role) bool {
	before := len(d.problems)
	given := map[string]bool{}
	fields := func(key string, read func(entry)) func(entry) {
		return func(f entry) { given[key] = true; read(f) }
	}
	known := map[string]func(entry){
		"name": fields("name", func(f entry) { *name, _ = d.text(f) }),
		"role": fields("role", func(f entry) {
			text, ok := d.text(f)
			if !ok {
				return
			}
			var err error
			if *role, err = console.ParseRole(text); err != nil {
				d.fail(f.node, "%v", err)
			}
		}),
	}
	known[hash] = fields(hash, func(f entry) { *sum, _ = d.hash(f) })
	if !d.fields(e.at, n, what, known) {
		return false
	}
	for _, key := range []string{"name", hash, "role"} {
		if !given[key] {
			d.fail(n, "%s has no %s", what, key)
		}
	}
	return len(d.problems) == before
}

var bcryptHash = regexp.MustCompile(`^\$2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// hash is text in which a bcrypt hash may stand as it is: its dollar signs are no
// variables.
func (d consoleSection) hash(e entry) (string, bool) {
	if n, ok := d.resolve(e.node); ok {
		if s, ok := n.(*ast.StringNode); ok && bcryptHash.MatchString(s.Value) {
			return s.Value, true
		}
	}
	s, ok := d.text(e)
	return strings.TrimSpace(s), ok
}

// list gives the values of a sequence.
func (d consoleSection) list(e entry) []ast.Node {
	n, ok := d.resolve(e.node)
	if !ok {
		return nil
	}
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(e.at, "%s must be a list", e.key)
		return nil
	}
	return s.Values
}

var errNoConsole = errors.New("the console needs a transaction log in a database")
