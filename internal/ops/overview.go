package ops

import (
	"context"
	"time"
)

// Overview is the state of a log.
type Overview struct {
	// At is the log's clock.
	At          time.Time    `json:"at"`
	DataSources []DataSource `json:"dataSources"`
	Jobs        []Job        `json:"jobs"`
	// Minutes are the last hours, oldest first; minutes in which nothing happened are left out.
	Minutes []Minute `json:"minutes"`
	// Off says what is not told because a table is missing or the account lacks rights; empty for nothing.
	Off []string `json:"off,omitempty"`
}

// DataSource is what the log knows of a data source.
type DataSource struct {
	Name string `json:"name"`
	// Waiting, Leased and Parked count its entries, up to a cap; where there are
	// more the name stands in More.
	Waiting int     `json:"waiting"`
	Leased  int     `json:"leased"`
	Parked  int     `json:"parked"`
	More    []State `json:"more,omitempty"`
	// Oldest is when the oldest that is not parked was written, OldestParked the
	// oldest that is; nil for none.
	Oldest       *time.Time `json:"oldest"`
	OldestParked *time.Time `json:"oldestParked"`
	// OldestID is its id.
	OldestID string `json:"oldestId,omitempty"`
	// Reachable is as the jobs alive see it: false if any of them cannot reach it or write there; nil when no
	// job has told.
	Reachable *bool `json:"reachable"`
	// Since is since when it is so, ReachError why not, masked.
	Since      *time.Time `json:"since"`
	ReachError string     `json:"reachError,omitempty"`
	Paused     bool       `json:"paused"`
	// PerSecond is the limit of deliveries by all jobs together; 0: none.
	PerSecond int `json:"perSecond"`
	// Configured: this process knows its target.
	Configured bool `json:"configured"`
	// Rates are of the last five minutes, in units per minute.
	Rates Funnel `json:"rates"`
}

// Funnel says what became of writes.
type Funnel struct {
	// AtOnce were delivered by the caller's first attempt, SyncRetry by a retry in the caller,
	// Job by the job.
	AtOnce    float64 `json:"atOnce"`
	SyncRetry float64 `json:"syncRetry"`
	Job       float64 `json:"job"`
	// Pending were left to the job, Parked to an operator; Refused by the database, and their callers told.
	Pending float64 `json:"pending"`
	Parked  float64 `json:"parked"`
	Refused float64 `json:"refused"`
}

// Minute is what became of the writes for a data source in a minute.
type Minute struct {
	Start      time.Time `json:"start"`
	DataSource string    `json:"dataSource"`
	Funnel
}

// Job is a job that is alive.
type Job struct {
	// ID is the process's own, Name what its configuration, host and process id say.
	ID   string `json:"id"`
	Name string `json:"name"`
	// LastSeen is its last heartbeat, by the log's clock.
	LastSeen time.Time `json:"lastSeen"`
}

// OverviewOptions say how much is looked at.
type OverviewOptions struct {
	// Cap is up to where entries are counted; 0 means CountCap, below 0 means all.
	Cap int
	// Hours is for how long the minutes reach back; 0 means none, at most 168.
	Hours int
}

// Overview tells the state of the log. It answers within a second however large
// the log is, unless Cap says otherwise.
func (s *Store) Overview(ctx context.Context, o OverviewOptions) (*Overview, error) {
	return nil, errNotBuilt
}
