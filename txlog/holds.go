package txlog

import (
	"context"
	"slices"
	"strings"

	"github.com/bedsql/bed/internal/logdb"
)

// Holds implements [logdb.SQL].
func (s sqlLog) Holds(ctx context.Context, session logdb.Session, ids []string) (bool, error) {
	v, err := s.visitor(ctx)
	if err != nil {
		return false, err
	}
	found, err := session.Query(ctx, "SELECT 1"+v.log())
	if err == nil && len(found) == 0 {
		err = errOther
	}
	for some := range slices.Chunk(ids, maxRows) {
		if err != nil {
			break
		}
		literals := make([]string, len(some))
		for i, id := range some {
			literals[i] = v.Literal(id)
		}
		if found, err = session.Query(ctx, "SELECT id FROM "+v.at+"transaction_log WHERE id IN ("+strings.Join(literals, ", ")+") LIMIT 1"); len(found) > 0 {
			return true, nil
		}
	}
	if err != nil {
		return false, s.failed("looking for entries in it from the request's transaction", v.elsewhere(err))
	}
	return false, nil
}
