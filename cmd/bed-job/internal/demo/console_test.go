package demo

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestTheDemoLeavesItsStuckEntryInAConsole(t *testing.T) {
	var served string
	var out strings.Builder
	o := Options{Out: &out, Console: true, parent: t.TempDir(), BedJob: func(_ context.Context, _ io.Writer, args ...string) int {
		if args[0] == "run" {
			text, err := os.ReadFile(args[slices.Index(args, "-c")+1])
			if err != nil {
				t.Error(err)
			}
			served = string(text)
		}
		return 0
	}}
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	_, address, ok := strings.Cut(served, `console: {listen: "`)
	address, _, _ = strings.Cut(address, `"`)
	if !ok || !strings.Contains(out.String(), "http://"+address+"/") {
		t.Errorf("run was given\n%s\nand the operator was told\n%s", served, out.String())
	}
}
