package ops

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/target"
)

// mask replaces a value in a displayed error.
const mask = "?"

// maskedError returns the last error of a unit for users who may not see values.
func maskedError(u *entry.Unit) string { return errmask.Mask(u.LastError, valuesOf(u)...) }

// valuesOf returns the parameters of a unit as a database could quote them.
func valuesOf(u *entry.Unit) (all []string) {
	for s := range strings.SplitSeq(u.Session, ";") {
		if _, value, _ := strings.Cut(s, "="); target.Masked(s) != s {
			value, _ = url.PathUnescape(value)
			all = append(all, strings.TrimPrefix(value, "'"))
		}
	}
	for _, s := range u.Statements {
		args, err := s.Args()
		if err != nil {
			continue
		}
		for _, a := range args {
			switch x := a.Value.(type) {
			case nil, bool:
			case []byte:
				all = append(all, string(x))
			default:
				all = append(all, fmt.Sprint(x))
			}
		}
	}
	return all
}
