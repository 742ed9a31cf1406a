package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`^\{[A-Za-z_][A-Za-z0-9_]*\}`)

var errDollar = errors.New("a $ must be followed by {NAME} of an environment variable, or by another $ to stand for itself")

// expand replaces ${NAME} by the environment variable and $$ by a dollar sign.
// What a variable holds is not looked at again. Errors never quote s, which
// may be a DSN with a password.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			out.WriteString(s)
			return out.String(), nil
		}
		out.WriteString(s[:i])
		s = s[i+1:]
		if strings.HasPrefix(s, "$") {
			out.WriteByte('$')
			s = s[1:]
			continue
		}
		ref := variable.FindString(s)
		if ref == "" {
			return "", errDollar
		}
		name := ref[1 : len(ref)-1]
		value, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		out.WriteString(value)
		s = s[len(ref):]
	}
}
