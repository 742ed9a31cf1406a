package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/sqltext"
)

// Overview is the state of a log.
type Overview struct {
	// At is the log's clock.
	At          time.Time    `json:"at"`
	DataSources []DataSource `json:"dataSources"`
	Jobs        []Job        `json:"jobs"`
	// Funnel is the sum of the data sources' rates.
	Funnel Funnel `json:"funnel"`
	// Minutes are the last hours, oldest first, without idle minutes.
	Minutes []Minute `json:"minutes"`
	// HalfCompensated counts the half-compensated groups. They wait for an operator.
	HalfCompensated int `json:"halfCompensated"`
	// Contended counts the entries waiting because of other transactions. ContendedSince is when
	// the first of them began to.
	Contended      int        `json:"contended"`
	ContendedSince *time.Time `json:"contendedSince,omitempty"`
	// Off lists missing parts of the report: a table is missing, or the account lacks rights to it.
	Off []string `json:"off,omitempty"`
}

// DataSource is the log's view of a data source.
type DataSource struct {
	Name string `json:"name"`
	// Waiting, Leased and Parked count its entries, up to a cap. More lists the states with more
	// entries than the cap.
	Waiting int     `json:"waiting"`
	Leased  int     `json:"leased"`
	Parked  int     `json:"parked"`
	More    []State `json:"more,omitempty"`
	// Oldest is the creation time of the oldest entry that is not parked, OldestParked of the
	// oldest parked one; nil without one.
	Oldest       *time.Time `json:"oldest"`
	OldestParked *time.Time `json:"oldestParked"`
	// OldestID is its id.
	OldestID string `json:"oldestId,omitempty"`
	// Reachable is false if any live job cannot reach it or write there, and nil if no job has
	// reported.
	Reachable *bool `json:"reachable"`
	// Since is when that began, ReachError the masked reason.
	Since      *time.Time `json:"since"`
	ReachError string     `json:"reachError,omitempty"`
	Paused     bool       `json:"paused"`
	// PerSecond is the limit of deliveries by all jobs together; 0 for no limit.
	PerSecond int `json:"perSecond"`
	// Configured reports that this process knows its target.
	Configured bool `json:"configured"`
	// Rates are of the last five minutes, in units per minute.
	Rates Funnel `json:"rates"`
}

// Funnel counts the outcomes of writes.
type Funnel struct {
	// AtOnce counts first attempts that delivered, SyncRetry retries in the caller, Job deliveries
	// by the job.
	AtOnce    float64 `json:"atOnce"`
	SyncRetry float64 `json:"syncRetry"`
	Job       float64 `json:"job"`
	// Pending counts writes left to the job, Parked those left to an operator, and Refused those
	// the database refused, as their callers know.
	Pending float64 `json:"pending"`
	Parked  float64 `json:"parked"`
	Refused float64 `json:"refused"`
}

// Minute counts the outcomes of a data source's writes in a minute.
type Minute struct {
	Start      time.Time `json:"start"`
	DataSource string    `json:"dataSource"`
	Funnel
}

// Job is a live job.
type Job struct {
	// ID identifies the process. Name holds its configuration, host and process id.
	ID   string `json:"id"`
	Name string `json:"name"`
	// LastSeen is its last heartbeat, by the log's clock.
	LastSeen time.Time `json:"lastSeen"`
}

// OverviewOptions limit an overview.
type OverviewOptions struct {
	// Cap is the limit of each count; 0 means CountCap, below 0 no limit.
	Cap int
	// Hours is how far back the minutes reach; 0 means none, at most 168.
	Hours int
}

// Overview returns the state of the log. It answers within a second regardless of the size of the
// log, unless Cap is raised.
func (s *Store) Overview(ctx context.Context, o OverviewOptions) (*Overview, error) {
	most := o.Cap
	switch {
	case o.Hours < 0 || o.Hours > 168:
		return nil, fmt.Errorf("%w: hours must be from 0 to 168", ErrInvalid)
	case most < 0:
		most = math.MaxInt32
	case most == 0:
		most = CountCap
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	out := &Overview{At: now, DataSources: []DataSource{}, Jobs: []Job{}, Minutes: []Minute{}}
	b := &overviewer{Store: s, out: out, most: most, byName: map[string]*DataSource{}}
	for name := range s.cfg.Targets {
		b.at(name).Configured = true
	}
	for _, step := range []func(context.Context) error{b.counts, b.halfCompensated, b.contended, b.views, func(ctx context.Context) error { return b.minutes(ctx, o.Hours) }} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.byName)) {
		out.DataSources = append(out.DataSources, *b.byName[name])
		out.Funnel = out.Funnel.Plus(b.byName[name].Rates)
	}
	off := s.journal.Off()
	for _, table := range slices.Sorted(maps.Keys(off)) {
		out.Off = append(out.Off, table+": "+s.cfg.Clean(off[table].Error()))
	}
	return out, nil
}

// overviewer gathers an overview.
type overviewer struct {
	*Store
	out    *Overview
	most   int
	byName map[string]*DataSource
}

func (b *overviewer) at(name string) *DataSource {
	d := b.byName[name]
	if d == nil {
		d = &DataSource{Name: name}
		b.byName[name] = d
	}
	return d
}

// counts counts the entries of each data source by the index.
func (b *overviewer) counts(ctx context.Context) error {
	for parked := range 2 {
		names, err := b.names(ctx, parked)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := b.count(ctx, b.at(name), parked); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *overviewer) count(ctx context.Context, d *DataSource, parked int) error {
	from := ` FROM transaction_log` + b.force("transaction_log_due") + ` WHERE parked = ? AND data_source = ? AND ` + b.headRow()
	var n int
	var oldest string
	// See whether there are more first: very many are not counted.
	last, err := b.texts(ctx, `SELECT id`+from+` ORDER BY next_try_time, id LIMIT 1 OFFSET ?`, parked, d.Name, b.most)
	more := len(last) > 0
	switch {
	case err != nil:
	case more:
		n = b.most
		oldest, err = b.oldest(ctx, d.Name, parked)
	default:
		err = b.row(ctx, []any{&n, &oldest}, `SELECT COUNT(*), COALESCE(MIN(id), '')`+from, parked, d.Name)
	}
	if err != nil || n == 0 {
		return err
	}
	var created *time.Time
	var ms int64
	switch err := b.row(ctx, []any{&ms}, `SELECT creation_time FROM transaction_log WHERE id = ?`, oldest); {
	case err == nil:
		t := time.UnixMilli(ms).UTC()
		created = &t
	case !errors.Is(err, sql.ErrNoRows): // else it is gone meanwhile
		return err
	}
	if parked == 1 {
		d.Parked, d.OldestParked = n, created
		if more {
			d.More = append(d.More, Parked)
		}
		return nil
	}
	// Units with a next try in the future are the leased ones: there it is the end of the lease.
	var leased, looked int
	if err := b.row(ctx, []any{&leased, &looked}, `SELECT COUNT(lease_token), COUNT(*) FROM (SELECT lease_token FROM transaction_log`+b.force("transaction_log_due")+
		` WHERE parked = 0 AND data_source = ? AND next_try_time > {now} AND next_try_time < ? AND `+b.headRow()+` ORDER BY next_try_time LIMIT ?) AS t`, d.Name, entry.WaitsFrom, b.most+1); err != nil {
		return err
	}
	d.Leased, d.Waiting, d.Oldest, d.OldestID = min(leased, b.most), max(0, n-leased), created, oldest
	if looked > b.most {
		d.More = append(d.More, Leased)
	}
	if more {
		d.Waiting = b.most
		d.More = append(d.More, Waiting)
	}
	return nil
}

// oldest finds the oldest of very many units, usually among the first rows of the table, else in
// the index.
func (b *overviewer) oldest(ctx context.Context, name string, parked int) (id string, err error) {
	for _, rows := range []string{
		`SELECT id FROM (SELECT id, parked, data_source FROM transaction_log ORDER BY id LIMIT 5000) AS f WHERE parked = ? AND data_source = ?`,
		`SELECT id FROM transaction_log` + b.force("transaction_log_due") + ` WHERE parked = ? AND data_source = ? LIMIT 2147483647`,
	} {
		err = b.row(ctx, []any{&id}, `SELECT COALESCE(MIN(id), '') FROM (`+rows+`) AS t`, parked, name)
		if err != nil || id != "" {
			break
		}
	}
	return id, err
}

// names returns the data sources with units, parked or not, by steps through the index.
func (b *overviewer) names(ctx context.Context, parked int) (all []string, err error) {
	for last := ""; ; {
		var name *string
		if err := b.row(ctx, []any{&name}, `SELECT MIN(data_source) FROM transaction_log WHERE parked = ? AND data_source > ?`, parked, last); err != nil || name == nil {
			return all, err
		}
		all, last = append(all, *name), *name
	}
}

// headRow is the condition for the first row of a unit, for queries that read only an index.
func (b *overviewer) headRow() string {
	return b.journal.Flavor.Pick(sqltext.Texts{MySQL: `RIGHT(id, 3) = '000'`, Postgres: `right(id, 3) = '000'`, SQLite: `substr(id, -3) = '000'`})
}

// contended counts the contended entries among up to most entries that are not parked.
func (b *overviewer) contended(ctx context.Context) error {
	return b.each(ctx, func(rows *sql.Rows) error {
		var created int64
		var settings string
		if err := rows.Scan(&created, &settings); err != nil {
			return err
		}
		var has struct {
			From int64 `json:"contended_from"`
		}
		if json.Unmarshal([]byte(settings), &has) == nil && has.From > 0 {
			b.out.Contended++
			if since := time.UnixMilli(created + has.From).UTC(); b.out.ContendedSince == nil || since.Before(*b.out.ContendedSince) {
				b.out.ContendedSince = &since
			}
		}
		return nil
	}, `SELECT creation_time, settings FROM (SELECT creation_time, settings FROM transaction_log WHERE parked = 0 AND `+b.headRow()+
		` LIMIT ?) AS t WHERE settings LIKE '%,"contended_from":%'`, b.most)
}

// halfCompensated counts half-compensated groups among up to most parked entries.
func (b *overviewer) halfCompensated(ctx context.Context) error {
	for _, d := range b.byName {
		if d.Parked > 0 {
			return b.row(ctx, []any{&b.out.HalfCompensated}, `SELECT COUNT(*) FROM (SELECT id, transaction_id, receipt, settings FROM transaction_log
  WHERE parked = 1 AND `+b.headRow()+` LIMIT ?) AS t WHERE receipt = id AND transaction_id = id AND settings LIKE '%,"undo":{%'`, b.most)
		}
	}
	return nil
}

// views adds operators' decisions and the jobs' views.
func (b *overviewer) views(ctx context.Context) error {
	all, err := b.journal.ReadSources(ctx)
	if errors.Is(err, journal.ErrOff) {
		return nil
	} else if err != nil {
		return b.fault(err)
	}
	for _, v := range all {
		switch {
		case v.DataSource == "" && v.Alive:
			b.out.Jobs = append(b.out.Jobs, Job{ID: v.Job, Name: v.Name, LastSeen: v.Heartbeat.UTC()})
		case v.DataSource == "":
		case v.Job == "":
			d := b.at(v.DataSource)
			d.Paused, d.PerSecond = v.Paused, v.PerSecond
		case v.Alive:
			b.at(v.DataSource).see(v, b.cfg.Clean)
		}
	}
	return nil
}

// see adds the view of one job. Unreachable outweighs reachable, and of equal views the
// longest-lasting counts.
func (d *DataSource) see(v journal.View, clean func(string) string) {
	since := v.Since.UTC()
	if d.Reachable == nil || *d.Reachable && !v.Reachable || *d.Reachable == v.Reachable && since.Before(*d.Since) {
		d.Reachable, d.Since, d.ReachError = &v.Reachable, &since, errmask.Mask(clean(v.LastError))
	}
}

// rateMinutes is the number of minutes averaged in a rate, without the current one.
const rateMinutes = 5

func (b *overviewer) minutes(ctx context.Context, hours int) error {
	since := max(time.Duration(hours)*time.Hour, (rateMinutes+1)*time.Minute)
	all, err := b.journal.ReadActivity(ctx, since)
	if errors.Is(err, journal.ErrOff) {
		return nil
	} else if err != nil {
		return b.fault(err)
	}
	current := b.out.At.Truncate(time.Minute)
	for _, m := range all {
		d := b.at(m.DataSource)
		if m.Start.Before(current) && !m.Start.Before(current.Add(-rateMinutes*time.Minute)) {
			d.Rates = d.Rates.Plus(funnel(m.Counts, rateMinutes))
		}
		if hours > 0 {
			b.out.Minutes = append(b.out.Minutes, Minute{Start: m.Start.UTC(), DataSource: m.DataSource, Funnel: funnel(m.Counts, 1)})
		}
	}
	return nil
}

func funnel(c journal.Counts, minutes float64) Funnel {
	return Funnel{
		AtOnce: float64(c[journal.AtOnce]) / minutes, SyncRetry: float64(c[journal.SyncRetry]) / minutes,
		Job: float64(c[journal.AsyncJob]) / minutes, Pending: float64(c[journal.Pending]) / minutes,
		Parked: float64(c[journal.Parked]) / minutes, Refused: float64(c[journal.Refused]) / minutes,
	}
}

// Plus is the sum of both.
func (f Funnel) Plus(o Funnel) Funnel {
	return Funnel{
		AtOnce: f.AtOnce + o.AtOnce, SyncRetry: f.SyncRetry + o.SyncRetry, Job: f.Job + o.Job,
		Pending: f.Pending + o.Pending, Parked: f.Parked + o.Parked, Refused: f.Refused + o.Refused,
	}
}
