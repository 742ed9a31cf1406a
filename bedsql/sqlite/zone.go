package sqlite

import (
	"strconv"
	"time"

	"github.com/bedsql/bed/bedsql/internal/localzone"
)

// zoneName spells a _timezone one way: "Local" by the zone it stands for.
func zoneName(name string) string {
	loc, err := time.LoadLocation(name)
	if err != nil {
		return name
	}
	return localzone.Name(loc)
}

func isTrue(v string) bool {
	on, err := strconv.ParseBool(v)
	return err != nil || on
}
