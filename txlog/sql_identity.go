package txlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// readIdentity reads who the log is, and gives it an identity when nobody has
// done so yet.
func (s *SQLStorage) readIdentity(ctx context.Context) error {
	err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		if s.identity, err = s.selectIdentity(ctx); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = s.db.ExecContext(ctx, s.backend.Flavor.text(shape{insertIdentity, 0}), uuid.NewString())
		if err != nil {
			return err
		}
		// Somebody else's may have come first.
		s.identity, err = s.selectIdentity(ctx)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("the log's identity cannot be read from the table bed_log, or not be put there: %w", err)
	case !storableToken(s.identity, maxToken):
		return &identityError{s.identity}
	}
	return nil
}

// identityError is an identity that cannot be one.
type identityError struct{ identity string }

func (e *identityError) Error() string {
	return fmt.Sprintf("the log's identity in the table bed_log is %.100q: it must have 1 to %d printable ASCII characters; "+
		"give it back the one it had, or delete the row for a new one", e.identity, maxToken)
}

// Is makes errors.Is(err, ErrUnusable) true.
func (e *identityError) Is(target error) bool { return target == ErrUnusable }

func (s *SQLStorage) selectIdentity(ctx context.Context) (string, error) {
	var identity string
	err := s.db.QueryRowContext(ctx, s.backend.Flavor.text(shape{selectIdentity, 0})).Scan(&identity)
	return identity, err
}
