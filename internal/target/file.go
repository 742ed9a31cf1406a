package target

import (
	"os"
	"path/filepath"
)

// SameFile reports whether two paths lead to one file, even if it does not exist yet. An empty path
// leads to none.
func SameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return resolved(a) == resolved(b) || errX == nil && errY == nil && os.SameFile(x, y)
}

// resolved returns path without symbolic links.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}
