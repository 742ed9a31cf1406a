package sqltext

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/cases"
)

func TestATextIsCutIntoItsTokens(t *testing.T) {
	t.Parallel()
	kinds := [...]string{Mark: "", Word: "word:", Quoted: "quoted:", String: "string:", Param: "param:", Var: "var:", Broken: "broken:"}
	cases.Check(t, "sqltext/tokens.txt", func(t *testing.T, in ...string) (out string) {
		for token := range Tokens(flavorOf(t, in[0]), BackslashIsPlain, in[1]) {
			if in[1][token.Start:token.Start+len(token.Text)] != token.Text {
				t.Errorf("%q: %q is not at %d", in[1], token.Text, token.Start)
			}
			out += fmt.Sprintf(" %s%s", kinds[token.Kind], token.Name())
		}
		return strings.TrimSpace(out)
	})
}
