package cli

import (
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

const verdictHelp = `
The verdict says whether the writes of an entry are applied in its target. It is read
from the receipt that exactly-once deliveries leave there, with the DSN of
targetDataSource:

    already applied              discard is safe; retry only removes the entry
    not applied                  retry applies it once; discard gives it up. For an entry
                                 that is not replayable retry decides that it never
                                 will be applied
    decided never to be applied  discard it, and do the work anew if it is still wanted
    cannot tell (at-least-once)  it leaves no receipt: look at the data, unless no attempt
                                 is in doubt
    target unreachable           ask again when it is back
    data source not configured   add it to targetDataSource

An attempt that is still running is not waited for: "not applied" means "not yet"
until the entry is neither leased nor waiting. Receipts are only as good as both
databases: after either was restored from a backup, look at the data.

In JSON it is the field verdict: applied, notApplied, neverApplied, cannotTell,
unreachable or notConfigured; verdictDetail says more, for people to read.`

// newVerifier makes one from the configuration.
func newVerifier(a *app, st txlog.Storage, cfg *config) *ops.Verifier {
	return ops.NewVerifier(st, opsConfig(a, cfg))
}
