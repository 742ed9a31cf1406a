// Transfer moves money from an account in one database to an account in another, fails at the
// worst moments, and shows that no cent is lost or made. transfer.go has the different ways.
//
// It reads its databases from the environment: BED_LOG_DSN and NORTH_DSN, of one MySQL or MariaDB
// server, and SOUTH_DSN, of PostgreSQL.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/bedsql/bed/bedsql"
)

func main() {
	b, err := open(context.Background(), os.Getenv("BED_LOG_DSN"), os.Getenv("NORTH_DSN"), os.Getenv("SOUTH_DSN"))
	if err == nil {
		defer b.close()
		err = b.show(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// show makes transfers one after the other. After each it runs the job until there is nothing left
// to do, and prints the result.
func (b *bank) show(ctx context.Context, out io.Writer) error {
	for _, s := range []struct {
		what  string
		move  func(context.Context, int64, fault) error
		cents int64
		fault fault
	}{
		{"with", b.with, 10, none},
		{"with, ended before End", b.with, 10, noEnd},
		{"with, rolled back", b.with, 10, rolledBack},
		{"with, more than there is", b.with, 1000, none},
		{"compensated", b.compensated, 10, none},
		{"compensated, the giver's account in use", b.compensated, 10, northInUse},
		{"compensated, the receiver's account in use", b.compensated, 10, southInUse},
		{"compensated, more than there is, in use", b.compensated, 1000, northInUse},
		{"compensated, no such account", b.compensated, 10, noAccount},
		{"compensated, more than there is", b.compensated, 1000, none},
	} {
		outcome := bedsql.OutcomeOf(s.move(ctx, s.cents, s.fault))
		for claimed := 1; claimed > 0; {
			report, err := b.job.RunOnce(ctx)
			if err != nil {
				return err
			}
			claimed = report.Claimed
		}
		fmt.Fprintf(out, "%s: %v; after the job %s\n", s.what, outcome, b.balances(ctx))
	}
	return nil
}
