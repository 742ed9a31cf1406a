package sqltext

import "strings"

// Assignment is a setting of the session that a statement changes.
type Assignment struct {
	// Name is the setting's, in lower case.
	Name string
	// Value is what it is set to: on and off are 1 and 0, a string is without its
	// quotes. Empty for what cannot be told.
	Value string
	// Reset: it is set to what it was when the session began.
	Reset bool
}

// Assignments are those of a text that changes settings of its session and does
// nothing else (SET a = 1, SET a TO 'x', RESET a, PRAGMA a = 1); nil of any other.
func Assignments(f Flavor, text string) []Assignment {
	var tokens []Token
	for t := range Tokens(f, 0, text) {
		if t.Kind == Broken || len(tokens) > 64 {
			return nil
		}
		tokens = append(tokens, t)
	}
	if n := len(tokens); n > 0 && tokens[n-1].Text == ";" {
		tokens = tokens[:n-1]
	}
	if len(tokens) < 2 {
		return nil
	}
	switch verb := tokens[0]; {
	case verb.Is("RESET") && f == Postgres && len(tokens) == 2 && isSetting(tokens[1]) && !tokens[1].Is("ALL") && !tokens[1].Is("ROLE"):
		return []Assignment{{Name: strings.ToLower(tokens[1].Text), Reset: true}}
	case verb.Is("SET") && f == Postgres:
		if tokens[1].Is("SESSION") {
			tokens = tokens[1:]
		}
		return assigned1(tokens[1:], f)
	case verb.Is("SET") && f == MySQL:
		return assignedMany(tokens[1:])
	case verb.Is("PRAGMA") && f == SQLite:
		return assigned1(tokens[1:], f)
	}
	return nil
}

// assigned1 reads one assignment.
func assigned1(t []Token, f Flavor) []Assignment {
	if len(t) < 3 || !isSetting(t[0]) || t[1].Text != "=" && !(f == Postgres && t[1].Is("TO")) {
		return nil
	}
	a := Assignment{Name: strings.ToLower(t[0].Text)}
	switch {
	case len(t) > 3: // a list, a number with a sign
	case t[2].Is("DEFAULT") && f == Postgres:
		a.Reset = true
	default:
		a.Value = SettingValue(constantText(t[2]))
	}
	return []Assignment{a}
}

// assignedMany reads MySQL's SET a = 1, @@SESSION.b = 'x'.
func assignedMany(t []Token) (list []Assignment) {
	for {
		switch {
		case len(t) > 0 && t[0].Text == "@@":
			if t = t[1:]; len(t) > 1 && t[1].Text == "." {
				if !t[0].Is("SESSION") && !t[0].Is("LOCAL") {
					return nil
				}
				t = t[2:]
			}
		case len(t) > 1 && (t[0].Is("SESSION") || t[0].Is("LOCAL")):
			t = t[1:]
		}
		if len(t) < 3 || !isSetting(t[0]) || t[0].Is("GLOBAL") || t[0].Is("PERSIST") || movesOthers(t[0].Text) || t[1].Text != "=" && t[1].Text != ":=" {
			return nil
		}
		a := Assignment{Name: strings.ToLower(t[0].Text)}
		end := 2
		for end < len(t) && t[end].Text != "," {
			if t[end].Kind == Mark || t[end].Kind == Param {
				return nil // an expression, which may contain the comma
			}
			end++
		}
		if end == 3 {
			a.Value = SettingValue(constantText(t[2]))
		}
		if list = append(list, a); end == len(t) {
			return list
		}
		t = t[end+1:]
	}
}

// movesOthers reports whether MySQL changes other settings along with that one,
// which are not put back with it: a character set brings its default collation.
func movesOthers(name string) bool {
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "character_set_") || strings.HasPrefix(name, "collation_")
}

// isSetting reports whether t can be the name of a setting, without quotes.
func isSetting(t Token) bool {
	if t.Kind != Word || !isWordStart(t.Text[0]) {
		return false
	}
	for i := range len(t.Text) {
		if c := t.Text[i]; c >= 0x80 || c == '$' {
			return false
		}
	}
	return true
}

// constantText is the value of t; empty if t is not a constant, or may mean
// something else than it says.
func constantText(t Token) string {
	switch {
	case t.Kind == String && len(t.Text) > 2 && t.Text[0] == t.Text[len(t.Text)-1] && !strings.ContainsRune(t.Text, '\\'):
		return t.Name()
	case t.Kind == Word && !t.Is("DEFAULT") && !t.Is("NULL"):
		return t.Text
	}
	return ""
}

// SettingValue writes on and off as 1 and 0, and leaves other values as they are.
func SettingValue(v string) string {
	switch strings.ToUpper(v) {
	case "ON", "TRUE", "YES":
		return "1"
	case "OFF", "FALSE", "NO":
		return "0"
	}
	return v
}
