package errmask

import "testing"

// A handler may say anything of a message, and its panic anything at all.
func TestHandlersErrorIsMaskedWhole(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`the consumer billing failed: no account for ann@example.org`:                                             `the consumer billing failed: ?`,
		"the consumer billing failed: bed: the handler of the consumer billing panicked: {ann 4711}\nfailed: too": `the consumer billing failed: ?`,
		`the consumer billing did not take it: the message has no UUID`:                                           `the consumer billing did not take it: the message has no UUID`,
	} {
		if got := Mask(text); got != want {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}
