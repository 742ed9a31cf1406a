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

// translated are the pages that are in Chinese too.
var translated = []string{
	"README.md", "docs/tutorial.md", "docs/adopting.md", "docs/soft-transactions.md", "docs/operations.md", "docs/errors.md",
	"docs/choosing.md", "docs/sharding-jdbc.md",
}

// chinese gives the path of a page's translation.
func chinese(english string) string {
	if english == "README.md" {
		return "README.zh-CN.md"
	}
	return "docs/zh/" + path.Base(english)
}

// mark stands above each heading of a Chinese page: the anchor of the English heading, and the
// hash of the section that was translated.
const mark = `<a id="%s"></a><!-- source: %s -->`

var (
	marker   = regexp.MustCompile(`(?m)^` + fmt.Sprintf(mark, `([^"]*)`, `(\w*)`) + `\n\n?`)
	tableRow = regexp.MustCompile(`(?m)^ *\|.*$`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// A part is a heading and what follows up to the next one.
type part struct{ anchor, hash, text string }

// English is the source: a section that changes is translated again, and then
//
//	go test ./internal/docs -run Chinese -update
//
// writes the hashes of the sections that it was translated from.
func TestChinesePagesTranslateTheEnglishOnes(t *testing.T) {
	t.Parallel()
	for _, page := range translated {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			english, text := englishParts(read(t, page)), read(t, chinese(page))
			parts := chineseParts(text)
			if of, is := anchors(english), anchors(parts); !slices.Equal(of, is) {
				t.Errorf("%s has the sections\n%q, its source has\n%q", chinese(page), is, of)
				return
			}
			fresh := text
			for i, p := range parts {
				if p.hash != english[i].hash {
					was, is := fmt.Sprintf(mark, p.anchor, p.hash), fmt.Sprintf(mark, p.anchor, english[i].hash)
					fresh = strings.Replace(fresh, was, is, 1)
				}
				if p.hash != english[i].hash && !updating() {
					t.Errorf("%s#%s: its source has changed: translate it again, then go test ./internal/docs -run Chinese -update", chinese(page), p.anchor)
				}
			}
			if updating() {
				cases.CheckText(t, "../"+chinese(page), fresh)
			}
			for i, p := range parts {
				for _, d := range differences(page, english[i].text, p.text) {
					t.Errorf("%s#%s: %s", chinese(page), p.anchor, d)
				}
			}
		})
	}
}

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

func anchors(parts []part) (list []string) {
	for _, p := range parts {
		list = append(list, p.anchor)
	}
	return list
}

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
		parts = append(parts, part{anchor: text[m[2]:m[3]], hash: text[m[4]:m[5]], text: text[m[1]:end]})
	}
	return parts
}

// differences says in what a section of a page differs from its translation, which
// should not.
func differences(page, english, translation string) (list []string) {
	differ := func(what string, of, is []string) {
		if !slices.Equal(of, is) {
			list = append(list, fmt.Sprintf("the %s are\n%s\nand in the source\n%s", what, strings.Join(is, "\n"), strings.Join(of, "\n")))
		}
	}
	differ("code blocks", fence.FindAllString(english, -1), fence.FindAllString(translation, -1))
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

// rowSizes gives the number of cells of each row of each table.
func rowSizes(text string) (list []string) {
	for _, row := range tableRow.FindAllString(text, -1) {
		list = append(list, fmt.Sprint(strings.Count(strings.ReplaceAll(row, `\|`, ""), "|")-1))
	}
	return list
}

// targets gives where the links of a page lead, seen from the root; those to a translation
// count as to its source.
func targets(page, text string) (list []string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		to, anchor, _ := strings.Cut(m[1], "#")
		if path.Base(to) == "glossary.md" {
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

// What is translated says when it is not true any more.
func TestTranslationsThatDifferAreFound(t *testing.T) {
	t.Parallel()
	const english = "## Costs\n\nSee [there](table.md#codes) and [here](#costs): `a` [x](https://x.y).\n\n```go\nx()\n```\n\n| a | b |\n|---|---|\n| c | d |\n"
	good := "## 代价\n\n见[那里](../table.md#codes)、[这里](#costs)：`a` [x](https://x.y)。\n\n```go\nx()\n```\n\n| 甲 | 乙 |\n|---|---|\n| 丙 | 丁 |\n"
	if d := differences("docs/tutorial.md", english, good); d != nil {
		t.Errorf("found %q", d)
	}
	for old, changed := range map[string]string{
		"x()": "y()", "## ": "# ", "| 丙 | 丁 |\n": "", " | 丁 |": " |", "#codes": "#code", "(#costs)": "(tutorial.md)", "x.y": "x.z", "`a`": "a",
		"(../table.md#codes)": "(../table.md#codes)[又](../errors.md)",
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
	if z := chineseParts("<a id=\"a\"></a><!-- source: 1f -->\n\n# 甲\n<a id=\"e-f\"></a><!-- source: 2f -->\n\n## 乙\n"); len(z) != 2 || z[1].hash != "2f" || z[0].text != "# 甲\n" {
		t.Errorf("the translated sections are %v", z)
	}
}

// The console and the Chinese pages use the terms of docs/zh/glossary.md, and no others for
// the same thing.
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
				if i := strings.Index(text, wrong); wrong != "" && i >= 0 {
					t.Errorf("%s says %s instead of %s: …%s", file, wrong, term, text[max(0, i-30):min(len(text), i+60)])
				}
			}
		}
	}
	if terms < 30 {
		t.Errorf("the glossary has %d terms", terms)
	}
}

// A page of docs/zh that is not in the list is compared with nothing.
func TestEveryChinesePageHasASource(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "docs/zh/*.md"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if name := filepath.Base(file); name != "glossary.md" && !slices.Contains(translated, "docs/"+name) {
			t.Errorf("docs/zh/%s is not compared with its source", name)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "README.zh-CN.md")); err == nil && !slices.Contains(translated, "README.md") {
		t.Error("README.zh-CN.md is not compared with its source")
	}
}
