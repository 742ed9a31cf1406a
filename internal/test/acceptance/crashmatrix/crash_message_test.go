package crashmatrix

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

// crashMessage delivers a message to a consumer in A, or to one at home that publishes the writes
// for B. An unacknowledged message stays pending: the broker delivers it again.
func crashMessage(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	s := ctx.Value(stepsKey{}).(*rig.Steps)
	db := pools["A"]
	var p *bedmessage.Publisher
	if o.publishes() {
		db = pools["bed home"]
		var err error
		if p, err = o.publisher(ctx, s, db); err != nil {
			return err
		}
		defer func() { _ = p.Close() }()
	}
	consume, err := bedmessage.Once(db, "crash", func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
		return o.each(func(where, table string) error {
			if where == "B" {
				return p.Publish(ctx, table, message.NewMessage("", []byte(fmt.Sprint(o.Row))))
			}
			_, err := tx.ExecContext(ctx, plusOne(table, o.Row))
			return err
		})
	})
	if err != nil {
		return err
	}
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
	s.Mu.Lock()
	s.Got, s.Again = got, again
	s.Mu.Unlock()
	return err
}

// publisher publishes to a broker in B, with the log of db.
func (o *crashOrder) publisher(ctx context.Context, s *rig.Steps, db *sql.DB) (*bedmessage.Publisher, error) {
	cfg, err := configOf(ctx, db)
	if err != nil {
		return nil, err
	}
	b, err := rig.Target(o.Driver)(o.B)
	if err != nil {
		return nil, err
	}
	return bedmessage.NewPublisher(inbox{sql.OpenDB(rig.CrashTarget(b, s, "B").Connector)}, "events", cfg)
}

// inbox is a broker with a single consumer. It adds one to the row named by a message, once for
// each UUID.
type inbox struct{ db *sql.DB }

const inboxTable = "CREATE TABLE inbox (uuid VARCHAR(36) PRIMARY KEY)"

func (i inbox) Publish(table string, messages ...*message.Message) error {
	tx, err := i.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	m := messages[0]
	r, err := tx.Exec(fmt.Sprintf("INSERT INTO inbox SELECT '%s' FROM (SELECT 1) AS one WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE uuid = '%[1]s')", m.UUID))
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := tx.Exec(fmt.Sprintf("UPDATE %s SET balance = balance + 1 WHERE id = %s", table, m.Payload)); err != nil {
		return err
	}
	return tx.Commit()
}

func (i inbox) Confirms() bool { return true }

func (i inbox) Close() error { return i.db.Close() }
