package mappers

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

// Order has what differs at each resend: gorm's created_at.
type Order struct {
	ID        string `gorm:"primaryKey;size:40"`
	Amount    int
	CreatedAt time.Time
}

func TestKeyGormUnderItsOwnFingerprint(t *testing.T) {
	t.Parallel()
	EachGorm(t, []any{&Order{}, &Author{}, &Book{}}, func(t *testing.T, r *rig.Rig, g *gorm.DB) {
		sent := 0
		send := func(fingerprint string) (replayed bool, author uint, err error) {
			sent++
			now := time.Date(2024, 1, sent, 0, 0, 0, 0, time.UTC)
			ctx, k := rig.Keyed("order 1")
			if fingerprint != "" {
				k.SetFingerprint(fingerprint)
			}
			g := g.Session(&gorm.Session{Context: ctx, NowFunc: func() time.Time { return now }})
			a := Author{Name: "a"}
			err = errors.Join(
				g.Create(&Order{ID: "o-1", Amount: 5}).Error,
				g.WithContext(bedsql.WithKeyPart(ctx, "amount")).Model(&Order{}).Where("id = ?", "o-1").Update("amount", gorm.Expr("amount + ?", 1)).Error,
				g.WithContext(bedsql.WithKeyPart(ctx, "author")).Create(&a).Error, // whose id the database makes
			)
			return k.Replayed(), a.ID, err
		}
		for i := range 3 {
			replayed, author, err := send("order 1: 5")
			if err != nil || replayed != (i > 0) || author != 1 {
				t.Errorf("sent %d times: replayed %v, author %d, %v", i+1, replayed, author, err)
			}
		}
		_, _, err := send("")
		rig.WantReused(t, "without the fingerprint", err)
		var all []Order
		if err := g.Find(&all).Error; err != nil || len(all) != 1 || all[0].Amount != 6 || all[0].CreatedAt.UTC().Day() != 1 {
			t.Errorf("there are %v, %v", all, err)
		}
		if n := r.Count("SELECT COUNT(*) FROM authors"); n != 1 {
			t.Errorf("there are %d authors, want 1", n)
		}
		rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
	})
}
