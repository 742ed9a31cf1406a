package instruments

import (
	"sync"

	"github.com/bedsql/bed/internal/safetext"
)

// most is the maximum number of data sources with metrics of their own. A log may name any
// number.
const most = 200

// others is the label of all further data sources.
const others = "(others)"

// Names bounds the values of the label data_source. Safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	known map[string]bool
}

// Of returns the label of a data source.
func (n *Names) Of(dataSource string) string {
	dataSource = safetext.Line(dataSource) // what shows metrics in a terminal obeys it
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.known[dataSource]:
		return dataSource
	case len(n.known) >= most:
		return others
	case n.known == nil:
		n.known = map[string]bool{}
	}
	n.known[dataSource] = true
	return dataSource
}
