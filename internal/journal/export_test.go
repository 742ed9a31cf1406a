package journal

import "time"

// AskAgainAfter sets how long a table that cannot be used is not asked for.
func (j *Journal) AskAgainAfter(d time.Duration) { j.again = d }
