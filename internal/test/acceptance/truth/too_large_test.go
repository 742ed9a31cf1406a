package truth

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// An entry too large for a packet to the log's server is refused for good, in every way of logging.
func TestWriteTooLargeForItsLogIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		logging bedsql.Logging
		write   func(ctx context.Context, r *rig.Rig, blob []byte) error
		down    bool
	}{
		"a write": {write: storesBlob},
		"a local transaction": {write: func(ctx context.Context, r *rig.Rig, blob []byte) error {
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, r.Q("INSERT INTO file VALUES (1, ?)"), blob); err != nil {
				return err
			}
			return tx.Commit()
		}},
		"staged": {write: func(ctx context.Context, r *rig.Rig, blob []byte) error {
			ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				return err
			}
			if err := storesBlob(ctx, r, blob); err != nil {
				return err
			}
			return soft.End(ctx)
		}},
		"in a soft transaction": {write: func(ctx context.Context, r *rig.Rig, blob []byte) error {
			ctx, soft, err := bedsql.Begin(ctx)
			if err != nil {
				return err
			}
			return errors.Join(storesBlob(ctx, r, blob), soft.End(ctx))
		}},
		"alongside":  {logging: bedsql.LogAlongside, write: storesBlob, down: true},
		"on failure": {logging: bedsql.LogOnFailure, write: storesBlob, down: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			p := testproxy.New(t, db.Addr())
			r := rig.NewWithLog(t, db, testdb.NewLog(t, testdb.DriverMySQL), rig.NoSyncRetry, func(cfg *bedsql.Config) { cfg.Logging = c.logging })
			r.Wrapped = r.Open(db.Via(p.Addr()).DSN)
			r.Exec("CREATE TABLE file (id INT PRIMARY KEY, content BYTEA)")
			if err := storesBlob(t.Context(), r, nil); err != nil {
				t.Fatal(err)
			}
			r.Exec("DELETE FROM file")
			if c.down {
				p.Refuse()
				p.CutAll()
			}
			err := c.write(t.Context(), r, make([]byte, 13<<20)) // its entry takes a third more
			if bedsql.OutcomeOf(err) != bedsql.OutcomeRefused || errors.Is(err, bedsql.ErrNotLogged) || !strings.Contains(err.Error(), "max_allowed_packet") {
				t.Errorf("%v: %.400v, want it refused with the limit", bedsql.OutcomeOf(err), err)
			}
			if n := r.Count("SELECT count(*) FROM file"); n != 0 {
				t.Errorf("%d rows, want none", n)
			}
			r.WantNoLog()
			if n := r.Counters.Refused.Load(); n != 1 {
				t.Errorf("%d are counted as refused", n)
			}
		})
	}
}

func storesBlob(ctx context.Context, r *rig.Rig, blob []byte) error {
	_, err := r.Wrapped.ExecContext(ctx, r.Q("INSERT INTO file VALUES (1, ?)"), blob)
	return err
}
