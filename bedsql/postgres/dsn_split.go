package postgres

import (
	"errors"
	"net/url"
	"strings"
)

var (
	errNotEscaped = errors.New("postgres: " + dataSourceParam + " in the DSN is not escaped as in a URL: use url.PathEscape")
	errEmpty      = errors.New("postgres: " + dataSourceParam + " in the DSN is empty: name the data source or leave the parameter out")
	errTwo        = errors.New("postgres: the DSN has two different values of " + dataSourceParam + ": leave one")
)

// splitDataSource takes bedDataSource out of a DSN and leaves everything else
// byte for byte. pgx.ParseConfig would give it too (RuntimeParams), but cannot
// read the name of a registered configuration, and silently keeps one of two
// different names.
func splitDataSource(dsn string) (name, bare string, err error) {
	switch {
	case strings.HasPrefix(dsn, "postgres://"), strings.HasPrefix(dsn, "postgresql://"):
		return splitURL(dsn)
	case strings.HasPrefix(dsn, registeredPrefix):
		return splitRegistered(dsn)
	default:
		return splitKeywords(dsn)
	}
}

// splitRegistered reads "registeredConnConfig0 bedDataSource=name", or with a
// question mark between them.
func splitRegistered(dsn string) (name, bare string, err error) {
	i := strings.IndexAny(dsn, " ?")
	if i < 0 {
		return "", dsn, nil
	}
	if dsn[i] == '?' {
		name, rest, err := splitQuery(dsn[i+1:])
		if rest != "" {
			return name, dsn[:i] + "?" + rest, err
		}
		return name, dsn[:i], err
	}
	name, rest, err := splitKeywords(dsn[i+1:])
	if rest = strings.TrimSpace(rest); rest != "" {
		return name, dsn[:i] + " " + rest, err
	}
	return name, dsn[:i], err
}

func splitURL(dsn string) (name, bare string, err error) {
	mark := queryStart(dsn)
	if mark < 0 {
		return "", dsn, nil
	}
	name, rest, err := splitQuery(dsn[mark+1:])
	if rest == "" {
		return name, dsn[:mark], err
	}
	return name, dsn[:mark+1] + rest, err
}

func splitQuery(query string) (name, rest string, err error) {
	pairs := strings.Split(query, "&")
	kept := pairs[:0:0]
	for _, pair := range pairs {
		rawKey, rawValue, _ := strings.Cut(pair, "=")
		if key, err := url.PathUnescape(strings.Trim(rawKey, " ")); err != nil || key != dataSourceParam {
			kept = append(kept, pair)
			continue
		}
		// As everywhere in such a URL, a plus is a plus.
		value, err := url.PathUnescape(rawValue)
		if err != nil {
			return "", "", errNotEscaped
		}
		if name, err = sameName(name, value); err != nil {
			return "", "", err
		}
	}
	return name, strings.Join(kept, "&"), nil
}

func sameName(name, value string) (string, error) {
	switch {
	case value == "":
		return "", errEmpty
	case name != "" && name != value:
		return "", errTwo
	}
	return value, nil
}

// queryStart finds the question mark that begins the query where pgx (and
// libpq) do: after the user and password, which end at the first "@" before
// any slash; not within the brackets of an IPv6 address.
func queryStart(dsn string) int {
	pos := strings.Index(dsn, "://") + len("://")
	if i := strings.IndexAny(dsn[pos:], "@/"); i >= 0 && dsn[pos+i] == '@' {
		pos += i + 1
	}
	for {
		if strings.HasPrefix(dsn[pos:], "[") {
			end := strings.IndexByte(dsn[pos:], ']')
			if end < 0 {
				return -1
			}
			pos += end + 1
		}
		i := strings.IndexAny(dsn[pos:], "/?,")
		if i < 0 {
			return -1
		}
		pos += i
		if dsn[pos] != ',' {
			break
		}
		pos++
	}
	i := strings.IndexByte(dsn[pos:], '?')
	if i < 0 {
		return -1
	}
	return pos + i
}

const spaces = " \t\n\r\v\f"

// splitKeywords walks keyword=value pairs as pgx (and libpq) read them: blanks
// around "=" are allowed, values may be in single quotes, a backslash takes the
// next byte literally. Anything else is left for the driver to refuse.
func splitKeywords(dsn string) (name, bare string, err error) {
	var kept strings.Builder
	done := 0 // everything before it was dealt with
	for pos := skipSpaces(dsn, 0); pos < len(dsn); pos = skipSpaces(dsn, pos) {
		start := pos
		eq := strings.IndexByte(dsn[pos:], '=')
		if eq < 0 {
			break
		}
		key := strings.Trim(dsn[pos:pos+eq], spaces)
		value, end, ok := keywordValue(dsn, skipSpaces(dsn, pos+eq+1))
		if !ok {
			break
		}
		pos = end
		if key != dataSourceParam {
			continue
		}
		if name, err = sameName(name, value); err != nil {
			return "", "", err
		}
		kept.WriteString(dsn[done:start])
		done = end
	}
	kept.WriteString(dsn[done:])
	return name, kept.String(), nil
}

func skipSpaces(s string, pos int) int {
	for pos < len(s) && strings.IndexByte(spaces, s[pos]) >= 0 {
		pos++
	}
	return pos
}

// keywordValue reads the value that begins at pos and says where it ends.
func keywordValue(s string, pos int) (value string, end int, ok bool) {
	quoted := pos < len(s) && s[pos] == '\''
	if quoted {
		pos++
	}
	var b strings.Builder
	for ; pos < len(s); pos++ {
		c := s[pos]
		switch {
		case quoted && c == '\'':
			return b.String(), pos + 1, true
		case !quoted && strings.IndexByte(spaces, c) >= 0:
			return b.String(), pos, true
		case c == '\\':
			if pos++; pos < len(s) {
				b.WriteByte(s[pos])
			}
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), min(pos, len(s)), !quoted
}
