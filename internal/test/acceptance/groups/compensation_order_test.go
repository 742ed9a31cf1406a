package groups

import (
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

// A part recorded before the first compensation, and waiting behind another entry under its order
// key, still belongs to its group. When its turn comes it is refused, and the group is compensated.
func TestPartBehindAnOrderKeyTurnsItsGroupBack(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		hurries(g.Rig)
		free := g.Rig.BlockRow(1)
		if _, err := g.Rig.Wrapped.ExecContext(bedsql.WithOrderKey(t.Context(), "k"), g.Q(rig.Give), 5); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("the first write under the key gives %v", err)
		}
		m := group(g)
		ordered := bedsql.WithOrderKey(m.Ctx, "k")
		m.Stage(bedsql.RequireRows(ordered, 1), m.Rig.Wrapped, rig.Short, -10)
		m.Stage(m.Ctx, m.South.Wrapped, rig.Give, 10)
		m.Stage(m.Soft.Compensation(m.Ctx), m.South.Wrapped, rig.Give, -10)
		err := m.End()
		if behind := (*bedsql.BehindError)(nil); !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &behind) {
			t.Fatalf("End says %v", err)
		}
		g.South.WantBalances(110)
		free()
		finishes(g)
		g.Rig.WantBalances(105)
		g.South.WantBalances(100)
	}, rig.NoSyncRetry)
}
