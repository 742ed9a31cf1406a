package journal

import "time"

// AskAgainAfter sets the pause after finding a table unusable.
func (j *Journal) AskAgainAfter(d time.Duration) { j.again = d }
