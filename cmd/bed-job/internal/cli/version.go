package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintln(a.Out, version())
			return nil
		},
	}
}

// stamp is the version of a release build, set by the linker; if empty, the Go tool's version
// counts.
var stamp string

func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionText(info, stamp)
}

func versionText(info *debug.BuildInfo, stamp string) string {
	version, revision, dirty := "(devel)", "", ""
	if info != nil {
		if info.Main.Version != "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = ", revision " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = " with local changes"
			}
		}
	}
	if stamp != "" {
		version = stamp
	}
	return fmt.Sprintf("bed-job %s%s%s, %s %s/%s", version, revision, dirty, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
