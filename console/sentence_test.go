package console

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/sqltext"
)

// formats find other packages' texts for pages, in each package's own form. A text with a suffix
// ends with a verb.
var formats = []struct{ files, said string }{
	{"../internal/ops/*.go", `Errorf\("%w: (STRING)", Err(?:Invalid|NotAmendable)`},
	{"../internal/ops/*.go", `&explained\{(?:c\.Clean\(fmt\.Sprintf\()?"(?:ops: the entry cannot be amended: )?(STRING)"( ?\+)?`},
	{"../internal/ops/*.go", `\bJudgement\{\w+, (?:fmt\.Sprintf\()?"(STRING)"( ?\+)?`},
	{"../internal/target/errors.go", `Why: +fmt\.Sprintf\("(STRING)"`},
	{"../internal/ops/amend.go", `\bwhy = "(STRING)"( ?\+)?`},
	{"../internal/ops/try.go", `\bNotes, (?:fmt\.Sprintf\()?"(STRING)"( ?\+)?`},
	{"../internal/ops/try.go", `(?:append\(\[\]string\{|trial\.Error = )fmt\.Sprintf\("(STRING)"`},
	{"../internal/ops/try.go", `"((?:numbers|what) STRING)"`},
	{"../internal/ops/verdict.go", `(?m)^\t+(?:return|\w+ +=) "(STRING)"$`},
	{"../internal/journal/journal.go", `(?:ErrOff = errors\.New\(|%s: %w: )"?(STRING)"(?:, table, ErrOff)?\)`},
	{"../asyncjob/control.go", `c\.name = fmt\.Sprintf\("(STRING)"`},
	{"../internal/ops/filter.go", `errors\.New\("(STRING)"\)`},
	{"../internal/broker/broker.go", `errors\.New\("(the parameters STRING)"\)`},
	{"../internal/service/call.go", `return nil, errors\.New\("((?:only|the call) STRING)"\)`},
	{"*.go", `\binvalid\("(STRING)"`},
	{"../bedsql/*.go", `(?:unreplayable\(|taint\(|tainted = )(?:fmt\.Sprintf\()?"(STRING)"`},
	{"../bedsql/*.go", `(?m)^const (?:inDoubt|notPlainDML|changedSetting) = "(STRING)"`},
}

func saidElsewhere(t *testing.T) (all []string) {
	t.Helper()
	for _, f := range formats {
		said := regexp.MustCompile(strings.ReplaceAll(f.said, "STRING", `(?:[^"\\]|\\.)*`))
		files, err := filepath.Glob(f.files)
		if err != nil || len(files) == 0 {
			t.Fatal(f.files, err)
		}
		before := len(all)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range said.FindAllStringSubmatch(string(text), -1) {
				format, err := strconv.Unquote(`"` + m[1] + `"`)
				if err != nil {
					t.Fatal(file, m[0], err)
				}
				if len(m) > 2 && m[2] != "" {
					format += "%s"
				}
				if strings.ContainsFunc(verbs.ReplaceAllString(regexp.QuoteMeta(format), ""), unicode.IsLetter) {
					all = append(all, format)
				}
			}
		}
		if len(all) == before {
			t.Errorf("nothing in %s matches %s", f.files, f.said)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestWhatOtherPackagesSayIsTranslated(t *testing.T) {
	t.Parallel()
	zh, known := load("zh-store"), saidElsewhere(t)
	if len(known) < 75 {
		t.Errorf("only %d formats were found", len(known))
	}
	for _, format := range known {
		translated, ok := zh[format]
		filled := len(verbs.FindAllString(regexp.QuoteMeta(format), -1))
		switch {
		case !ok:
			t.Errorf("locales/zh-store.json lacks %q", format)
		case !strings.ContainsFunc(translated, func(r rune) bool { return unicode.Is(unicode.Han, r) }):
			t.Errorf("%q is %q in Chinese", format, translated)
		case strings.Count(translated, "%") != filled || strings.Count(translated, "%s") != filled:
			t.Errorf("%q does not fill in what %q does", translated, format)
		}
	}
	for format := range zh {
		if !slices.Contains(known, format) {
			t.Errorf("locales/zh-store.json has %q, which nothing says", format)
		}
	}
}

func TestSentencesAreSaidWithWhatTheyFillIn(t *testing.T) {
	t.Parallel()
	en, zh := languages[0], languages[1]
	for text, want := range map[string]string{
		"the job will not run it: it read before it wrote":                                                                "后台作业不会执行它：它先读后写",
		"it must not be run again: it has more than 1000 statements, of which the first are kept here":                    "它不得再次执行：它的语句超过 1000 条，这里只保存了开头的",
		"already applied: a delivery applies nothing any more; discard is safe, retry only removes the entry":             "已生效：再投递也不会有任何效果；可以放心丢弃，重试只会删除条目",
		"bed_attempt: the table cannot be used: Error 1142: denied":                                                       "bed_attempt：此表无法使用：Error 1142: denied",
		`parameter 2 is not in the form that the log keeps, such as 1, "text" or {"uint64":7}`:                            `第 2 个参数不是事务日志保存的形式，例如 1、"text" 或 {"uint64":7}`,
		`the entry was written with the settings "a\nb", which the DSN of data source orders cannot have (it has "c"): x`: `条目写入时的设置是 "a\nb"，数据源 orders 的 DSN 不能采用（它的设置是 "c"）：x`,
		"NOT ROLLED BACK: a table without transactions was changed (Some\nnon-transactional)":                             "无法回滚：更改了一张不支持事务的表（Some\nnon-transactional）",
		"Error 1146 (42S02): Table 'a.b' doesn't exist":                                                                   "Error 1146 (42S02): Table 'a.b' doesn't exist",
		"%s%n: 100%": "%s%n: 100%",
		"":           "",
	} {
		if got := zh.say(text); got != want {
			t.Errorf("%q is said as\n%q, want\n%q", text, got, want)
		}
		if got := en.say(text); got != text {
			t.Errorf("%q is said as %q in English", text, got)
		}
	}
}

// On a Chinese page, only SQL, names, ids, and texts from a database or an operator are not
// Chinese.
func TestChinesePagesHoldNoEnglishSentence(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	d := f.entries[0]
	d.NotReplayable, d.VerdictDetail, d.Unreadable = "it read before it wrote", "an attempt may be running at this moment", "statement 1 of 2: the parameters of statement 2 cannot be read"
	d.InDoubt = true
	f.trial = &ops.Trial{Notes: append([]string{"the job will not run it: a statement depends on its session"}, ops.NotRolledBack[sqltext.MySQL]...), Error: "no answer within 9s: Error 1205: Lock wait", Class: "unreachable"}
	c := open(t, f)
	whole := regexp.MustCompile(`(?s)<(head|code|time|svg)\b.*?</(head|code|time|svg)>|<(\w+) class="(error|person)[^"]*"[^>]*>.*?</(\w+)>`)
	tag, english := regexp.MustCompile(`<[^>]*>`), regexp.MustCompile(`[A-Za-z']{2,} [a-z']{2,}[^\n]*`)
	data := regexp.MustCompile(`^(Lock wait timeout exceeded|UPDATE orders SET|job on &lt;b&gt;host)`)
	one := "/entries/" + fakeID(0)
	for _, q := range []request{
		{path: "/?"}, {path: "/entries?"}, {path: "/entries?state=parked&kinds=all&"}, {path: one + "?"}, {path: one + "/try?", method: "POST", body: "x=1"},
		{path: "/entries/" + fakeID(2) + "?"}, {path: "/entries/" + fakeID(3) + "?"}, {path: "/audit?"}, {path: "/nowhere?"}, {path: "/entries/" + fakeID(99) + "?"},
		{path: one + "/retry?"}, {path: one + "/discard?"}, {path: "/data-sources/orders/limit?"}, {path: "/entries?state=no&"}, {path: "/entries?olderThan=x&"},
		{path: "/bulk/retry?state=parked&"},
	} {
		q.path += "lang=zh"
		body := ask4(t, c, q).Body.String()
		if !strings.Contains(body, `<html lang="zh">`) {
			t.Errorf("%s is not in Chinese: %s", q.path, body)
		}
		for _, said := range english.FindAllString(tag.ReplaceAllString(whole.ReplaceAllString(body, "\n"), "\n"), -1) {
			if !data.MatchString(said) {
				t.Errorf("%s says %q", q.path, said)
			}
		}
	}
}
