package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	dropped = regexp.MustCompile("[^a-z0-9 _-]")
)

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	links := 0
	for _, file := range markdown(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", file, m[1])
			} else if anchor != "" && !hasAnchor(t, target, anchor) {
				t.Errorf("%s: there is no heading for the link to %s", file, m[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links were found", links)
	}
}

// markdown lists the documents, hidden directories left out.
func markdown(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && strings.HasPrefix(e.Name(), "."):
			return filepath.SkipDir
		case !e.IsDir() && strings.HasSuffix(path, ".md"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// hasAnchor looks for a heading as GitHub names it, or an anchor of the page's own.
func hasAnchor(t *testing.T, file, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		if anchorOf(m[1]) == anchor {
			return true
		}
	}
	return strings.Contains(string(text), `<a id="`+anchor+`"></a>`)
}

// anchorOf is GitHub's anchor of a heading.
func anchorOf(title string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}
