package acceptance

import (
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

// A part recorded before the first compensation, and waiting behind another entry under its order
// key, still belongs to its group. When its turn comes it is refused, and the group is compensated.
func TestPartBehindAnOrderKeyTurnsItsGroupBack(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		g.rig.hurries()
		free := g.rig.blockRow(1)
		if _, err := g.rig.wrapped.ExecContext(bedsql.WithOrderKey(t.Context(), "k"), g.q(give), 5); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("the first write under the key gives %v", err)
		}
		m := g.group()
		ordered := bedsql.WithOrderKey(m.ctx, "k")
		m.stage(bedsql.RequireRows(ordered, 1), m.rig.wrapped, short, -10)
		m.stage(m.ctx, m.south.wrapped, give, 10)
		m.stage(m.soft.Compensation(m.ctx), m.south.wrapped, give, -10)
		err := m.end()
		if behind := (*bedsql.BehindError)(nil); !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &behind) {
			t.Fatalf("End says %v", err)
		}
		g.south.wantBalances(110)
		free()
		g.finishes()
		g.rig.wantBalances(105)
		g.south.wantBalances(100)
	}, noSyncRetry)
}
