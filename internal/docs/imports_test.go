package docs

import (
	"os/exec"
	"strings"
	"testing"
)

// heavy is what an application must not be made to link by a package of the core.
var heavy = []string{
	"github.com/prometheus/", "go.opentelemetry.io/", "github.com/spf13/", "github.com/goccy/go-yaml", "google.golang.org/protobuf",
	"golang.org/x/crypto/bcrypt", "html/template", "net/http", "log/slog",
	"github.com/bedsql/bed/console", "github.com/bedsql/bed/internal/ops", "github.com/bedsql/bed/cmd/",
	"github.com/bedsql/bed/listener/bedprom", "github.com/bedsql/bed/listener/bedotel", "github.com/bedsql/bed/listener/bedslog",
}

func TestCoreLinksNeitherMetricsNorTracesNorCLI(t *testing.T) {
	t.Parallel()
	// The drivers' own imports are theirs.
	for _, core := range []string{"./bedsql", "./listener", "./txlog", "./asyncjob"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", core)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "github.com/bedsql/bed/txlog") {
			t.Fatalf("go list -deps %s: %v\n%s", core, err, out)
		}
		for dep := range strings.FieldsSeq(string(out)) {
			for _, h := range heavy {
				if strings.HasPrefix(dep, h) {
					t.Errorf("%s links %s", core, dep)
				}
			}
		}
	}
}
