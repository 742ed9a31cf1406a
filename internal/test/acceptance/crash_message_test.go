package acceptance

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
)

// crashMessage delivers a message to a consumer in A. What is not acknowledged is pending:
// the broker delivers it again.
func crashMessage(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	s := ctx.Value(stepsKey{}).(*steps)
	consume := bedmessage.Once(pools["A"], "crash", func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		return o.each(func(_, table string) error {
			_, err := tx.ExecContext(ctx, plusOne(table, o.Row))
			return err
		})
	})
	deliver := func() (got string, err error) {
		if err := consume(message.NewMessageWithContext(ctx, fmt.Sprint(o.Row), nil)); err != nil {
			return "", fmt.Errorf("%w: %w", bedsql.ErrPending, err)
		}
		return "acknowledged", nil
	}
	got, err := deliver()
	again := ""
	if o.Resend {
		again, _ = deliver()
	}
	s.mu.Lock()
	s.got, s.again = got, again
	s.mu.Unlock()
	return err
}
