package docs

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/cases"
)

// translated lists the pages with a Chinese twin.
var translated = []string{
	"README.md", "docs/tutorial.md", "docs/adopting.md", "docs/soft-transactions.md", "docs/keys.md", "docs/operations.md", "docs/stuck.md", "docs/errors.md", "docs/services.md",
	"docs/choosing.md", "docs/sharding-jdbc.md", "docs/mappers.md", "docs/exactly-once.md",
}

// native lists the pages of docs/zh without an English source. They may be missing, and any
// Chinese page may link to them.
var native = []string{"glossary.md", "faq.md", "compare.md"}

// chinese returns the path of a page's translation.
func chinese(english string) string {
	if english == "README.md" {
		return "README.zh-CN.md"
	}
	return "docs/zh/" + path.Base(english)
}

// mark stands above each heading of a Chinese page. It holds the anchor of the English heading and
// the hash of the translated section, followed by " stale" once the English has changed. Then note
// stands below the heading.
const (
	mark = `<a id="%s"></a><!-- source: %s%s -->`
	note = "> 本节的[英文原文](%s#%s)已有改动，译文尚未更新。\n\n"
)

var (
	marker   = regexp.MustCompile(`(?m)^` + fmt.Sprintf(mark, `([^"]*)`, `(\w*)`, `((?: stale)?)`) + `\n\n?`)
	noteLine = regexp.MustCompile(`(?m)^` + fmt.Sprintf(regexp.QuoteMeta(note), `[^)#]*`, `[^)]*`))
	tableRow = regexp.MustCompile(`(?m)^ *\|.*$`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
	comment  = regexp.MustCompile(`(?m)(^|\s+)(//|#|--) .*$`)
)

// A part is a heading and the text up to the next one.
type part struct{ anchor, hash, stale, text string }

// The English page is the source. A change to it fails no build: the test lists stale and missing
// sections. It fails for a heading without a counterpart, or for an up-to-date section with other
// code, tables or links than its source.
//
//	go test ./internal/docs -run Chinese -update
//
// marks the stale sections. To translate one, delete the note below its heading and run this again.
func TestChinesePagesTranslateTheEnglishOnes(t *testing.T) {
	t.Parallel()
	for _, page := range translated {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			english, text := englishParts(read(t, page)), read(t, chinese(page))
			if updating() {
				text = recorded(page, english, text)
				cases.CheckText(t, "../"+chinese(page), text)
			}
			has := map[string]bool{}
			for _, p := range chineseParts(text) {
				source := find(english, p.anchor)
				switch {
				case source == nil:
					t.Errorf("%s has the section %s, %s has not", chinese(page), p.anchor, page)
				case has[p.anchor]:
					t.Errorf("%s has the section %s twice", chinese(page), p.anchor)
				case p.stale != "" || p.hash != source.hash:
					t.Logf("stale: %s#%s", chinese(page), p.anchor)
				default:
					for _, d := range differences(page, source.text, p.text) {
						t.Errorf("%s#%s: %s", chinese(page), p.anchor, d)
					}
				}
				has[p.anchor] = true
			}
			for _, p := range english {
				if !has[p.anchor] {
					t.Logf("missing: %s#%s", chinese(page), p.anchor)
				}
			}
		})
	}
}

// recorded returns the text of a Chinese page with its marks and notes brought up to date.
func recorded(page string, english []part, text string) string {
	for _, p := range chineseParts(text) {
		source := find(english, p.anchor)
		if source == nil {
			continue
		}
		hash, stale, body := source.hash, "", noteLine.ReplaceAllString(p.text, "")
		translated := p.stale != "" && body == p.text
		if p.hash != source.hash && !translated {
			hash, stale = p.hash, " stale"
			title := heading.FindString(body) + "\n\n"
			to, _ := filepath.Rel(path.Dir(chinese(page)), page)
			body = strings.Replace(body, title, title+fmt.Sprintf(note, to, p.anchor), 1)
		}
		text = strings.Replace(text, fmt.Sprintf(mark, p.anchor, p.hash, p.stale), fmt.Sprintf(mark, p.anchor, hash, stale), 1)
		text = strings.Replace(text, p.text, body, 1)
	}
	return text
}

func find(parts []part, anchor string) *part {
	if i := slices.IndexFunc(parts, func(p part) bool { return p.anchor == anchor }); i >= 0 {
		return &parts[i]
	}
	return nil
}

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

func englishParts(text string) (parts []part) {
	var at []int
	fences := fence.FindAllStringIndex(text, -1)
	for _, m := range heading.FindAllStringIndex(text, -1) {
		if !slices.ContainsFunc(fences, func(f []int) bool { return f[0] < m[0] && m[0] < f[1] }) {
			at = append(at, m[0])
		}
	}
	for i, from := range at {
		body := text[from:append(at, len(text))[i+1]]
		hash := sha256.Sum256([]byte(strings.Join(strings.Fields(body), " ")))
		parts = append(parts, part{anchor: anchorOf(heading.FindStringSubmatch(body)[1]), hash: fmt.Sprintf("%x", hash[:6]), text: body})
	}
	return parts
}

func chineseParts(text string) (parts []part) {
	at := marker.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		parts = append(parts, part{anchor: text[m[2]:m[3]], hash: text[m[4]:m[5]], stale: text[m[6]:m[7]], text: text[m[1]:end]})
	}
	return parts
}

// differences lists a translation's changes to parts that should stay equal: code, headings,
// tables, links and code spans.
func differences(page, english, translation string) (list []string) {
	differ := func(what string, of, is []string) {
		if !slices.Equal(of, is) {
			list = append(list, fmt.Sprintf("the %s are\n%s\nand in the source\n%s", what, strings.Join(is, "\n"), strings.Join(of, "\n")))
		}
	}
	differ("code blocks", blocks(english), blocks(translation))
	english, translation = fence.ReplaceAllString(english, ""), fence.ReplaceAllString(translation, "")
	differ("headings", levels(english), levels(translation))
	differ("rows of tables", rowSizes(english), rowSizes(translation))
	differ("links", targets(page, english), targets(chinese(page), translation))
	for _, span := range spans(english) {
		if !slices.Contains(spans(translation), span) {
			list = append(list, "there is no `"+span+"`")
		}
	}
	return list
}

func levels(text string) (list []string) {
	for _, m := range heading.FindAllString(text, -1) {
		list = append(list, strings.Repeat("#", len(m)-len(strings.TrimLeft(m, "#"))))
	}
	return list
}

// blocks returns the code blocks without their translatable parts: comments, and the text of
// drawings. An example's output stays.
func blocks(text string) (list []string) {
	for _, block := range fence.FindAllString(text, -1) {
		if strings.Contains(block, "┌") {
			block = "a drawing"
		}
		code, output, _ := strings.Cut(block, "// Output:")
		list = append(list, comment.ReplaceAllString(code, "")+output)
	}
	return list
}

// rowSizes returns the number of cells of each row of each table.
func rowSizes(text string) (list []string) {
	for _, row := range tableRow.FindAllString(text, -1) {
		list = append(list, fmt.Sprint(strings.Count(strings.ReplaceAll(row, `\|`, ""), "|")-1))
	}
	return list
}

// targets returns the targets of a page's links, as paths from the root. A link to a translation counts
// as one to its source, and a Chinese screenshot as the English one.
func targets(page, text string) (list []string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		to, anchor, _ := strings.Cut(strings.Replace(m[1], "-chinese.png", "-light.png", 1), "#")
		if slices.Contains(native, path.Base(to)) {
			continue
		}
		if !strings.Contains(to, "://") {
			if to = path.Join(path.Dir(page), to); m[1][0] == '#' {
				to = page
			}
			for _, source := range translated {
				if to == chinese(source) {
					to = source
				} else if to == source && strings.Contains(page, "zh") && page != chinese(source) {
					to = "not the translation of " + source
				}
			}
		}
		list = append(list, to+"#"+anchor)
	}
	slices.Sort(list)
	return list
}

func spans(text string) (list []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
		list = append(list, strings.Join(strings.Fields(m[1]), " "))
	}
	return list
}

func TestTranslationsThatDifferAreFound(t *testing.T) {
	t.Parallel()
	const english = "## Costs\n\nSee [there](table.md#codes) and [here](#costs): `a` [x](https://x.y).\n\n```go\nx() // why\n// Output: apples\n```\n\n| a | b |\n|---|---|\n| c | d |\n"
	good := "## 代价\n\n见[那里](../table.md#codes)、[这里](#costs)：`a` [x](https://x.y)。\n\n```go\nx() // 为什么\n// Output: apples\n```\n\n| 甲 | 乙 |\n|---|---|\n| 丙 | 丁 |\n"
	if d := differences("docs/tutorial.md", english, good); d != nil {
		t.Errorf("found %q", d)
	}
	for old, changed := range map[string]string{
		"x()": "y()", "## ": "# ", "| 丙 | 丁 |\n": "", " | 丁 |": " |", "#codes": "#code", "(#costs)": "(tutorial.md)", "x.y": "x.z", "`a`": "a",
		"(../table.md#codes)": "(../table.md#codes)[又](../errors.md)", "apples": "pears",
	} {
		bad := strings.Replace(good, old, changed, 1)
		if bad == good || len(differences("docs/tutorial.md", english, bad)) == 0 {
			t.Errorf("%q instead of %q is not found", changed, old)
		}
	}
	a, b := englishParts("# A\n\nb c\n\n```\n# d\n```\n## E f\n"), englishParts("# A\n\nb\nc\n\n```\n# d\n```\n## E f\n")
	if len(a) != 2 || a[1].anchor != "e-f" || a[0].hash != b[0].hash || a[0].hash == englishParts("# A\n\nb d\n")[0].hash {
		t.Errorf("the sections are %v and %v", a, b)
	}
	if z := chineseParts("<a id=\"a\"></a><!-- source: 1f -->\n\n# 甲\n<a id=\"e-f\"></a><!-- source: 2f stale -->\n\n## 乙\n"); len(z) != 2 || z[0].stale != "" || z[1].hash != "2f" || z[1].stale != " stale" || z[0].text != "# 甲\n" {
		t.Errorf("the translated sections are %v", z)
	}
}

func TestChangedEnglishMarksItsTranslationStale(t *testing.T) {
	t.Parallel()
	const page = "docs/tutorial.md"
	old, changed := englishParts("# A\n\nb\n\n## C\n\nd\n"), englishParts("# A\n\nb\n\n## C\n\ne\n")
	fresh := fmt.Sprintf(mark, "a", old[0].hash, "") + "\n\n# 甲\n\n乙\n\n" + fmt.Sprintf(mark, "c", old[1].hash, "") + "\n\n## 丙\n\n丁\n"
	stale := fmt.Sprintf(mark, "a", old[0].hash, "") + "\n\n# 甲\n\n乙\n\n" + fmt.Sprintf(mark, "c", old[1].hash, " stale") +
		"\n\n## 丙\n\n" + fmt.Sprintf(note, "../tutorial.md", "c") + "丁\n"
	again := strings.Replace(fresh, old[1].hash, changed[1].hash, 1)
	for _, c := range []struct {
		name       string
		english    []part
		text, want string
	}{
		{"unchanged", old, fresh, fresh},
		{"changed", changed, fresh, stale},
		{"still stale", changed, stale, stale},
		{"the English is as before", old, stale, fresh},
		{"translated: the note is deleted", changed, noteLine.ReplaceAllString(stale, ""), again},
	} {
		if is := recorded(page, c.english, c.text); is != c.want {
			t.Errorf("%s: the page is\n%s\nwant\n%s", c.name, is, c.want)
		}
	}
}

// The console and the Chinese pages use the terms of docs/zh/glossary.md and no others for the same
// thing. A page may name another term once, in brackets.
func TestChineseKeepsToTheGlossary(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	for _, page := range translated {
		texts[chinese(page)] = read(t, chinese(page))
	}
	for _, file := range []string{"console/locales/zh.json", "console/locales/zh-store.json"} {
		var locale map[string]string
		if err := json.Unmarshal([]byte(read(t, file)), &locale); err != nil {
			t.Fatal(err)
		}
		texts[file] = strings.Join(slices.Collect(maps.Values(locale)), "\n")
	}
	all, terms := "", 0
	for _, text := range texts {
		all += text
	}
	for _, row := range tableRow.FindAllString(read(t, "docs/zh/glossary.md"), -1) {
		cells := strings.Split(row, "|")
		if len(cells) != 6 {
			t.Fatalf("docs/zh/glossary.md has the row %s", row)
		}
		term, _, _ := strings.Cut(strings.TrimSpace(cells[2]), "（")
		if term == "中文" || strings.HasPrefix(term, "---") {
			continue
		}
		if terms++; !strings.Contains(all, term) {
			t.Errorf("docs/zh/glossary.md has %s, which nothing uses", term)
		}
		for wrong := range strings.SplitSeq(strings.TrimSpace(cells[4]), "、") {
			for file, text := range texts {
				if wrong == "" {
					continue
				}
				if gloss := regexp.MustCompile(`（[^（）]*` + regexp.QuoteMeta(wrong) + `[^（）]*）`).FindString(text); gloss != "" {
					text = strings.Replace(text, gloss, "", 1)
				}
				if i := strings.Index(text, wrong); i >= 0 {
					t.Errorf("%s says %s instead of %s: …%s", file, wrong, term, text[max(0, i-30):min(len(text), i+60)])
				}
			}
		}
	}
	if terms < 30 {
		t.Errorf("the glossary has %d terms", terms)
	}
}

func TestEveryChinesePageHasASourceOrIsNative(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "docs/zh/*.md"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if name := filepath.Base(file); !slices.Contains(native, name) && !slices.Contains(translated, "docs/"+name) {
			t.Errorf("docs/zh/%s is not compared with its source", name)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "README.zh-CN.md")); err == nil && !slices.Contains(translated, "README.md") {
		t.Error("README.zh-CN.md is not compared with its source")
	}
}
