package ops

import (
	"github.com/bedsql/bed/internal/entry"
)

// A Verdict tells whether an entry's writes are applied in its target. The values appear in JSON
// and are promised to users.
type Verdict string

const (
	// Applied: the receipt is there. Discarding the entry is safe, retrying it
	// only removes it.
	Applied Verdict = "applied"
	// NotApplied: the receipt does not exist (yet); or the entry leaves no receipt, and none of its
	// attempts may have been applied. Retrying applies it once; discarding gives it up.
	NotApplied Verdict = "notApplied"
	// NeverApplied: the receipt is void. It is not applied and never will be;
	// the application has to do the work anew.
	NeverApplied Verdict = "neverApplied"
	// CannotTell: there is no evidence, such as for an entry under AtLeastOnce. An operator has to
	// look at the data.
	CannotTell Verdict = "cannotTell"
	// Unreachable: the target did not answer. Ask again later.
	Unreachable Verdict = "unreachable"
	// NotConfigured: targetDataSource does not name the target.
	NotConfigured Verdict = "notConfigured"
)

// A Judgement is the verdict on one entry. Its detail never holds a secret.
type Judgement struct {
	Verdict Verdict
	// Detail adds an explanation for people.
	Detail string
}

// Note is a remark beside a list; it may be empty.
func (j Judgement) Note() string {
	switch j.Detail {
	case "", atLeastOnce, notInDoubt, running, unstarted, compensating:
		return ""
	}
	return j.Short() + ": " + j.Detail
}

// Short is the verdict in a list.
func (j Judgement) Short() string {
	switch j.Verdict {
	case Applied:
		return "already applied"
	case NotApplied:
		return "not applied"
	case NeverApplied:
		return "decided never to be applied"
	case Unreachable:
		return "target unreachable"
	case NotConfigured:
		return "data source not configured"
	default:
		if j.Detail == atLeastOnce {
			return "cannot tell (at-least-once)"
		}
		return "cannot tell"
	}
}

// Advice returns the operator's choices.
func (j Judgement) Advice(u *entry.Unit) string {
	switch {
	case j.Verdict == Applied:
		return "discard is safe, retry only removes the entry"
	case j.Verdict == NeverApplied:
		return "discard it, and do the work anew if it is still wanted"
	case j.Verdict == NotApplied && j.Detail != "":
		return j.Detail
	case j.Verdict == NotApplied && u.NotReplayable != "":
		return "retry decides that it never will be"
	case j.Verdict == NotApplied:
		return "retry applies it once"
	}
	return j.Detail
}

const (
	atLeastOnce  = "it leaves no receipt in its target: look at the data"
	notInDoubt   = "it leaves no receipt in its target; the log knows of no attempt that may have been applied"
	unstarted    = "it runs only if its group is compensated"
	compensating = "it compensates its group part by part: retry resumes where it stopped"
	running      = "an attempt may be running at this moment"
)
