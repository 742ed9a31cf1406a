package cli

import (
	"testing"
	"time"

	"github.com/bedsql/bed/internal/safetext"
)

func TestWhatATerminalWouldObeyIsEscaped(t *testing.T) {
	for in, want := range map[string]string{
		"plain é 漢字 🙂":     "plain é 漢字 🙂",
		"\x1b[31mred":      `\x1b[31mred`,
		"a\x00b\x7fc":      `a\x00b\x7fc`,
		"a\nb\tc\r":        `a\nb\tc\x0d`,
		"\u009b31m":        `\x9b31m`,
		"\u202egro\u200b":  `\u202egro\u200b`,
		"bad \xff utf8":    `bad \xff utf8`,
		"\uFFFD is itself": "\uFFFD is itself",
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
	if got := safetext.Lines("a\r\n\tb\x1b"); got != "a\n\tb\\x1b" {
		t.Errorf("safetext.Lines gave %q", got)
	}
}

func TestCellIsOneLineWithinItsLimit(t *testing.T) {
	if got := oneLine("  UPDATE a\n\t SET b = 'é'\r\n", 60); got != "UPDATE a SET b = 'é'" {
		t.Errorf("got %q", got)
	}
	if got := oneLine("éééééé", 4); got != "ééé…" {
		t.Errorf("got %q", got)
	}
}

func TestAgesAreCoarse(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestJSONEscapesWhatATerminalWouldObey(t *testing.T) {
	got, err := marshal([]string{"\x1b\x7f\u202e\U000E0001<é>"}, "", "  ")
	if want := "[\n  \"\\u001b\\u007f\\u202e\\udb40\\udc01<é>\"\n]"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
