package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func statsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count the entries of each data source",
		Long: `Count the entries of each data source: waiting ones, those being written or delivered at
this moment (leased), and those parked for an operator. Also show the oldest entry's time.

JSON (-o json): an array of objects with dataSource, waiting, leased, parked and
oldest (RFC 3339 in UTC, or null).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConfig(cmd.Context(), func(log boundedLog, _ *config) error {
				all, err := log.Stats(cmd.Context())
				if err != nil {
					return err
				}
				views := []statsView{}
				t := table{headings: []string{"DATA SOURCE", "WAITING", "LEASED", "PARKED", "OLDEST"}}
				for _, s := range all {
					t.add(s.DataSource, strconv.Itoa(s.Waiting), strconv.Itoa(s.Leased), strconv.Itoa(s.Parked), when(a.Now(), s.Oldest))
					v := statsView{s.DataSource, s.Waiting, s.Leased, s.Parked, nil}
					if oldest := s.Oldest.UTC(); !oldest.IsZero() {
						v.Oldest = &oldest
					}
					views = append(views, v)
				}
				return a.print(views, &t, "The log is empty.")
			})
		},
	}
	a.logFlags(cmd)
	return cmd
}

// statsView is txlog.Stats as JSON shows it.
type statsView struct {
	DataSource string     `json:"dataSource"`
	Waiting    int        `json:"waiting"`
	Leased     int        `json:"leased"`
	Parked     int        `json:"parked"`
	Oldest     *time.Time `json:"oldest"`
}
