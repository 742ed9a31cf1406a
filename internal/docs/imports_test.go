package docs

import (
	"os/exec"
	"strings"
	"testing"
)

// heavy lists packages that a core package must not link into an application.
var heavy = []string{
	"github.com/prometheus/", "go.opentelemetry.io/", "github.com/spf13/", "github.com/goccy/go-yaml", "google.golang.org/protobuf",
	"golang.org/x/crypto/bcrypt", "html/template", "net/http", "log/slog",
	"github.com/bedsql/bed/console", "github.com/bedsql/bed/internal/ops", "github.com/bedsql/bed/cmd/",
	"github.com/ThreeDotsLabs/", "github.com/nats-io/", "github.com/rabbitmq/", "github.com/twmb/",
	"github.com/bedsql/bed/listener/bedprom", "github.com/bedsql/bed/listener/bedotel",
}

// brokers are linked only by bed-job.
var brokers = []string{"github.com/nats-io/", "github.com/rabbitmq/", "github.com/twmb/", "github.com/bedsql/bed/cmd/"}

func TestMessagesLinkNoBrokersLibrary(t *testing.T) {
	t.Parallel()
	linksNoneOf(t, brokers, "./bedsql/message", "./bedsql/mysql", "./bedsql/postgres", "./bedsql/sqlite", "./console")
}

// A requirement would choose the version of an application that uses the library, too; and go
// install refuses a module with a replacement.
func TestNoLibraryOfApplicationsIsRequired(t *testing.T) {
	t.Parallel()
	text := read(t, "go.mod")
	for _, library := range []string{"gorm.io/", "jmoiron/sqlx", "XSAM/otelsql", "pressly/goose", "golang-migrate/", "ariga.io/", "\nreplace "} {
		if strings.Contains(text, library) {
			t.Errorf("go.mod has %q: tests with it belong into internal/test/libraries", library)
		}
	}
}

func TestCoreLinksNeitherMetricsNorTracesNorCLI(t *testing.T) {
	t.Parallel()
	linksNoneOf(t, heavy, "./bedsql", "./listener", "./txlog", "./asyncjob")
}

func linksNoneOf(t *testing.T, heavy []string, packages ...string) {
	t.Helper()
	// The drivers' own imports are theirs.
	for _, core := range packages {
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
