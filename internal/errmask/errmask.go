// Package errmask masks the values in a database's error messages.
package errmask

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Mask returns text with ? for each value that a server quoted in it. It keeps names of
// tables, columns and constraints, codes and classes, and the words of the servers and
// drivers (own.txt). In other words, such as a trigger's, it also masks each of values, the
// parameters of the statement as text, wherever they stand alone. A possible value counts as
// a value, and extends as far as its message allows: it may itself hold quotes.
func Mask(text string, values ...string) string {
	if network.MatchString(text) {
		return text
	}
	for _, v := range values {
		if strings.ContainsAny(v, "'\"`") { // it would be torn at its quotes
			text = without(text, v)
		}
	}
	m := masker{made: made.MatchString(text), values: values}
	m.scan(text)
	var b strings.Builder
	for _, p := range m.pieces {
		if !p.name {
			for _, v := range values {
				p.text = without(p.text, v)
			}
		}
		b.WriteString(p.text)
	}
	return b.String()
}

// A piece is a part of the text; a name is always shown.
type piece struct {
	text string
	name bool
}

type masker struct {
	pieces []piece
	// made is set if a trigger or function wrote the text, so that it quotes no names.
	made   bool
	values []string
}

// network matches errors from before or after the traffic on a connection: they hold
// addresses.
var network = regexp.MustCompile("^(?:(?:dial|read|write) (?:tcp|udp|unix)[46]?(?: \\S+)?: |lookup \\S+(?: on \\S+)?: |failed to connect to `[^`]*`:|hostname resolving error|tls: |x509: )")

// made matches the codes of SIGNAL and RAISE.
var made = regexp.MustCompile(`\(45000\)|\(SQLSTATE (?:P0001|45000)\)|constraint failed: .*\(1811\)`)

func (m *masker) add(text string, name bool) {
	if text != "" {
		m.pieces = append(m.pieces, piece{text, name})
	}
}

// known are messages with useful text after the value. The value is the group in the middle,
// and the longest match.
var known = []*regexp.Regexp{
	// The application writes the error text of a handler of package message.
	regexp.MustCompile(`(?s)^(the consumer .*? failed: )(.*)()$`),
	// MySQL
	regexp.MustCompile(`(?s)^(.*?Duplicate entry )('.*')( for key ['"` + "`" + `][^'"` + "`" + `]*['"` + "`" + `][^'"]*)$`),
	regexp.MustCompile(`(?s)^(.*? near )('.*')( at line \d+[^'"]*)$`),
	regexp.MustCompile(`(?s)^(.*? value: )('.*')( for (?:column|function) ['` + "`" + `][^']*['` + "`" + `]?(?: at row \d+)?[^'"]*)$`),
	// PostgreSQL
	regexp.MustCompile(`(?s)^(.*? byte sequence(?: for encoding "[^"]*":)? )(0x[0-9a-f x]*)( in encoding .*| \(SQLSTATE \w+\))?$`),
	regexp.MustCompile(`(?s)^(.*?Key \(.*?\)=)(\(.*\))( (?:already exists|is not present in table "[^"]*"|is still referenced from table "[^"]*"|conflicts with existing key)[^"()=]*(?:\(SQLSTATE \w+\))?[^"()=]*)$`),
	regexp.MustCompile(`(?s)^(.*?Key \(.*?\)=)(\(.*\))([^()]*)$`),
	regexp.MustCompile(`(?s)^(.*?Failing row contains )(\(.*\))([^()]*)$`),
	regexp.MustCompile(`(?s)^(.*? encode )(.*)( into (?:binary|text) format for [\w ]+ \(OID \d+\))(?:: cannot find encode plan)?$`),
	regexp.MustCompile(`(?s)^(.*? encode )(.*)()$`),
	// A server with another language uses other quotation marks.
	regexp.MustCompile(`(?s)^([^'"]*?)([»«„“”‘「『].*[»«“”’」』])([^»«“”’」』]*)$`),
}

func (m *masker) scan(text string) {
	for _, k := range known {
		if g := k.FindStringSubmatch(text); g != nil {
			// The part before the value is the database's own, and may quote names.
			m.quotes(g[1])
			around := ""
			if g[2] != "" && strings.ContainsAny(g[2][:1], `'"(`) {
				around = g[2][:1]
			}
			m.add(around+"?"+g[2][len(g[2])-len(around):], true)
			m.quotes(g[3])
			return
		}
	}
	m.quotes(text)
}

var (
	// naming matches the words before a quoted name.
	naming = regexp.MustCompile(`(?i)(?:^|[^\w])(?:key|column|field|constraint|relation|table|alias|index|database|schema|role|user|host|type|function|procedure|sequence|view|trigger|extension|language|partition|policy|domain|parameter|variable|engine|statement|cursor|savepoint|reference|name|encoding|collation|tablespace|publication|subscription|slot|operation|character set)s?(?: name)?:? ?$`)
	// place is the part of a statement that MySQL quotes after a name.
	place = regexp.MustCompile(`^in '(?:[A-Z][A-Z ]*|(?:[a-zA-Z]+ )?(?:list|clause|statement))'`)
	// own are words that are always shown.
	own = func() *regexp.Regexp {
		r := regexp.MustCompile(strings.Join(strings.Fields(strings.ReplaceAll(comments.ReplaceAllString(ownWords, ""), " ", `\x20`)), `|`))
		r.Longest()
		return r
	}()
	// ownCode are the words among them that no trigger can write.
	ownCode  = regexp.MustCompile(`^(?:statement \d+ of \d+: )?Error \d+ \(\w{5}\)|\(SQLSTATE \w{5}\)$|\(\d+\)$`)
	comments = regexp.MustCompile(`(?m)^#.*\n`)

	//go:embed own.txt
	ownWords string
)

// quotes splits text at its quotes: it keeps names, and from the first value on it masks
// everything up to the last quote of its kind.
func (m *masker) quotes(text string) {
	start := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\'' && c != '"' && c != '`' {
			continue
		}
		before := text[start:i]
		end := strings.IndexByte(text[i+1:], c)
		switch {
		case c == '\'' && i > 0 && i+1 < len(text) && isLetter(text[i-1]) && isLetter(text[i+1]):
			continue // doesn't
		case end < 0: // what was cut off
			m.plain(before)
			m.add(string(c)+"?", true)
			return
		}
		end += i + 1
		named := !m.made && (c == '`' || naming.MatchString(text[:i]) ||
			c == '\'' && i > 0 && (text[i-1] == '@' || strings.HasSuffix(text[:i], "'.")) && len(m.pieces) > 0 && m.pieces[len(m.pieces)-1].name ||
			c == '\'' && i >= len("in ") && place.MatchString(text[i-len("in "):]))
		if named {
			m.plain(before)
			m.add(text[i:end+1], true)
			i, start = end, end+1
			continue
		}
		end = strings.LastIndexByte(text, c)
		m.plain(before)
		m.add(string(c)+"?"+string(c), true)
		i, start = end, end+1
	}
	m.plain(text[start:])
}

// plain adds text without quotes.
func (m *masker) plain(text string) {
	switch {
	case !slices.ContainsFunc(m.values, func(v string) bool { return without(text, v) != text }):
		m.add(text, false)
	case m.made:
		m.pieces = append(m.pieces, split(text, ownCode)...)
	default:
		m.pieces = append(m.pieces, splitOwn(text)...)
	}
}

// split divides text into matches of words, and the rest.
func split(text string, words *regexp.Regexp) []piece {
	var m masker
	for {
		at := words.FindStringIndex(text)
		if at == nil {
			m.add(text, false)
			return m.pieces
		}
		m.add(text[:at[0]], false)
		m.add(text[at[0]:at[1]], true)
		text = text[at[1]:]
	}
}

// splits caches the latest results: the search takes milliseconds, and a log has few texts.
var splits struct {
	sync.Mutex
	of map[string][]piece
}

func splitOwn(text string) []piece {
	splits.Lock()
	defer splits.Unlock()
	known, ok := splits.of[text]
	if !ok {
		if len(splits.of) >= 1000 || splits.of == nil {
			splits.of = map[string][]piece{}
		}
		known = split(text, own)
		splits.of[text] = known
	}
	return known
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// without replaces value outside of longer words.
func without(text, value string) string {
	if value == "" || !strings.Contains(text, value) {
		return text
	}
	first, _ := utf8.DecodeRuneInString(value)
	last, _ := utf8.DecodeLastRuneInString(value)
	var b strings.Builder
	for from := 0; ; {
		i := strings.Index(text[from:], value)
		if i < 0 {
			b.WriteString(text[from:])
			return b.String()
		}
		i += from
		end := i + len(value)
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[end:])
		if isWord(first) && isWord(before) || isWord(last) && isWord(after) {
			_, size := utf8.DecodeRuneInString(text[i:])
			b.WriteString(text[from : i+size])
			from = i + size
			continue
		}
		b.WriteString(text[from:i] + "?")
		from = end
	}
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
