package journal

import (
	"context"
	"database/sql"
	"time"
)

// Control is an operator's decision about a data source. All jobs obey it.
type Control struct {
	// Paused stops all deliveries by jobs.
	Paused bool
	// PerSecond bounds the deliveries by all jobs together; 0 means no limit.
	PerSecond int
}

// ControlStatement sets the control of a data source: run it in the transaction that audits
// it. A nil pointer keeps the old value.
func (j *Journal) ControlStatement(dataSource string, paused *bool, perSecond *int) (statement string, args []any, err error) {
	if _, err := j.usable(DataSources); err != nil {
		return "", nil, err
	}
	p, n, set := 0, 0, []string{"since"}
	if paused != nil {
		set = append(set, "paused")
		if *paused {
			p = 1
		}
	}
	if perSecond != nil {
		n, set = *perSecond, append(set, "per_second", "next_slot")
	}
	return j.Text(j.upsertSource(`?, '', '', ?, ?, 0, 0, {now}, NULL, 0, 0`, set...)), []any{dataSource, p, n}, nil
}

// upsertSource inserts a row of bed_data_source, or sets these columns of an existing row.
func (j *Journal) upsertSource(values string, set ...string) string {
	return `INSERT INTO bed_data_source (data_source, job, name, paused, per_second, next_slot, reachable, since, last_error, heartbeat, alive_until) VALUES (` + values + `)` +
		j.onConflict("data_source, job", "{column} = {new}", set)
}

// lead is how far ahead a job may take slots of a limit: units taken together start
// together.
const lead = 100 * time.Millisecond

// Reserve takes up to want slots of the data source's limit, which all jobs share, on the
// log's clock. n may be delivered now; if it is 0, wait is the time before the next call.
// Without a limit n is want. In any second at most the limit plus a tenth of it begins.
func (j *Journal) Reserve(ctx context.Context, dataSource string, want int) (n int, wait time.Duration, c Control, err error) {
	for range 10 {
		var next, now int64
		c = Control{}
		if err := j.each(ctx, DataSources, func(rows *sql.Rows) error {
			return rows.Scan(&c.Paused, &c.PerSecond, &next, &now)
		}, `SELECT paused, per_second, next_slot, {now} FROM bed_data_source WHERE data_source = ? AND job = ''`, dataSource); err != nil {
			return 0, 0, c, err
		}
		if c.Paused {
			return 0, 0, c, nil
		}
		if c.PerSecond <= 0 {
			return want, 0, c, nil
		}
		taken, to, wait := grant(now*1000, next, c.PerSecond, want)
		if taken == 0 {
			return 0, wait, c, nil
		}
		changed, err := j.exec(ctx, DataSources, `UPDATE bed_data_source SET next_slot = ? WHERE data_source = ? AND job = '' AND next_slot = ? AND per_second = ?`,
			to, dataSource, next, c.PerSecond)
		if err != nil {
			return 0, 0, c, err
		}
		if changed == 1 {
			return taken, 0, c, nil
		}
	}
	return 0, lead, c, nil // the others are quicker
}

// grant takes slots from next on, in microseconds, if that time has come. Unused slots from
// before now are lost, so that there is no burst after a rest.
func grant(now, next int64, perSecond, want int) (n int, to int64, wait time.Duration) {
	if next > now {
		return 0, next, time.Duration(next-now) * time.Microsecond
	}
	n = min(want, max(1, perSecond*int(lead/time.Millisecond)/1000))
	return n, now + int64(n)*1_000_000/int64(perSecond), 0
}

// Writers returns the number of writes for the data source that applications have recorded
// in this minute and the last, and the number of live jobs that deliver to it.
func (j *Journal) Writers(ctx context.Context, dataSource string) (writes int64, jobs int, err error) {
	if err := j.each(ctx, Activity, func(rows *sql.Rows) error { return rows.Scan(&writes) },
		`SELECT COALESCE(SUM(at_once + sync_retry + pending + refused), 0) FROM bed_activity
  WHERE minute >= {now} - 120000 AND data_source = ?`, dataSource); err != nil {
		return 0, 0, err
	}
	err = j.each(ctx, DataSources, func(rows *sql.Rows) error { return rows.Scan(&jobs) },
		`SELECT COUNT(*) FROM bed_data_source j JOIN bed_data_source v ON v.job = j.job
  WHERE j.data_source = '' AND j.job <> '' AND j.alive_until >= {now} AND v.data_source = ? AND v.reachable = 1`, dataSource)
	return writes, jobs, err
}

// View is a row of a job: about itself with an empty DataSource, else about its view of a
// data source.
type View struct {
	DataSource, Job, Name string
	Control
	Reachable bool
	Since     time.Time
	LastError string
	Heartbeat time.Time
	// Alive is set while its job counts as alive.
	Alive bool
}

// ReadSources returns all rows: the operators' decisions (Job is empty), the jobs, and their
// views of the data sources. now is the log's clock.
func (j *Journal) ReadSources(ctx context.Context) ([]View, error) {
	alive := map[string]bool{} // by what each says of itself, which comes first
	return list(ctx, j, DataSources, func(rows *sql.Rows, v *View) error {
		var since, beat, until, now int64
		var text sql.NullString
		if err := rows.Scan(&v.DataSource, &v.Job, &v.Name, &v.Paused, &v.PerSecond, &v.Reachable, &since, &text, &beat, &until, &now); err != nil {
			return err
		}
		if v.DataSource == "" {
			alive[v.Job] = until >= now
		}
		v.Since, v.Heartbeat, v.LastError, v.Alive = time.UnixMilli(since), time.UnixMilli(beat), text.String, alive[v.Job]
		return nil
	}, `SELECT data_source, job, name, paused, per_second, reachable, since, last_error, heartbeat, alive_until, {now} FROM bed_data_source
  ORDER BY data_source, job`)
}

// Beat records that a job is alive, and for how long it counts as alive.
func (j *Journal) Beat(ctx context.Context, job, name string, alive time.Duration) error {
	if !j.on(DataSources) {
		return nil
	}
	_, err := j.exec(ctx, DataSources, j.upsertSource(`'', ?, ?, 0, 0, 0, 1, {now}, NULL, {now}, {now} + ?`, "heartbeat", "alive_until"),
		job, text(name, 255), alive.Milliseconds())
	return err
}

// See records a job's current view of a data source; why is empty if it is reachable. The
// row counts as long as the job is alive.
func (j *Journal) See(ctx context.Context, dataSource, job, name, why string) error {
	if !j.on(DataSources) {
		return nil
	}
	reachable, last := 1, any(nil)
	if why != "" {
		reachable, last = 0, text(why, maxError)
	}
	_, err := j.exec(ctx, DataSources, j.upsertSource(`?, ?, ?, 0, 0, 0, ?, {now}, ?, {now}, {now}`, "reachable", "since", "last_error", "heartbeat"),
		dataSource, job, text(name, 255), reachable, last)
	return err
}

// Leave forgets a job that ends.
func (j *Journal) Leave(ctx context.Context, job string) error {
	_, err := j.exec(ctx, DataSources, `DELETE FROM bed_data_source WHERE job = ?`, job)
	return err
}
