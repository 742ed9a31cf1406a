package docs

import (
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// yamlOf reads a file with one document.
func yamlOf(t *testing.T, path string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(read(t, path)), &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

// at goes down a path of keys; a number in it is a place in a list.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			if v = m[s]; !ok || v == nil {
				t.Fatalf("there is no %v of %v", s, path)
			}
		case int:
			l, ok := v.([]any)
			if !ok || len(l) <= s {
				t.Fatalf("there is no place %d of %v", s, path)
			}
			v = l[s]
		}
	}
	return v
}

func TestImageIsNotRootAndHasNoShell(t *testing.T) {
	t.Parallel()
	text := read(t, "Dockerfile")
	stages := regexp.MustCompile(`(?m)^FROM (?:--\S+ )?(\S+) AS (\S+)$`).FindAllStringSubmatch(text, -1)
	if len(stages) != 3 || stages[2][2] != "bed-job" {
		t.Fatalf("the stages are %v: the last one is what is built by default", stages)
	}
	for _, s := range stages[1:] {
		if !strings.HasPrefix(s[1], "gcr.io/distroless/static") || !strings.HasSuffix(s[1], ":nonroot") {
			t.Errorf("%s is made from %s", s[2], s[1])
		}
		_, body, _ := strings.Cut(text, s[0])
		if user := regexp.MustCompile(`(?m)^USER (\d+):\d+$`).FindStringSubmatch(body); user == nil || user[1] == "0" {
			t.Errorf("%s runs as %v", s[2], user)
		}
	}
	programs := regexp.MustCompile(`go build (?:-C (\S+) )?.*-o \S+ \./(\S+)`).FindAllStringSubmatch(text, -1)
	if len(programs) != 2 {
		t.Errorf("it builds %q", programs)
	}
	for _, built := range programs {
		if name := path.Join(built[1], built[2]); len(parse(t, name)) == 0 {
			t.Errorf("%s has no Go files", name)
		}
	}
	if strings.Contains(text, "ADD ") || regexp.MustCompile(`(?i)(password|secret)=`).MatchString(text) {
		t.Error("it adds from elsewhere, or holds a secret")
	}
}

func TestComposedInstallationIsHardenedWithoutDefaultPassword(t *testing.T) {
	t.Parallel()
	v := yamlOf(t, "compose.yaml")
	for _, name := range []string{"mariadb", "postgres", "nats"} {
		at(t, v, "services", name)
	}
	for _, name := range []string{"bed-job", "orders", "stock", "payments"} {
		s := at(t, v, "services", name)
		if at(t, s, "read_only") != true || at(t, s, "cap_drop", 0) != "ALL" {
			t.Errorf("%s is not hardened: %v", name, s)
		}
		ports, _ := s.(map[string]any)["ports"].([]any) // those of the inner services are for no one outside
		if inner := name == "stock" || name == "payments"; inner != (len(ports) == 0) {
			t.Errorf("%s has the ports %v", name, ports)
		}
		for _, port := range ports {
			if !strings.HasPrefix(port.(string), "127.0.0.1:") {
				t.Errorf("%s is open to the world at %s", name, port)
			}
		}
	}
	text := read(t, "compose.yaml")
	for _, m := range regexp.MustCompile(`\$\{(\w+)([^}]*)\}`).FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(m[2], ":?") {
			t.Errorf("the variable %s may be empty or has a default", m[1])
		}
		if !strings.Contains(read(t, "deploy/compose/.env.example"), "\n"+m[1]+"=\n") {
			t.Errorf(".env.example does not name %s, or gives it a value", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`(?m)- (\./\S+?):`).FindAllStringSubmatch(text, -1) {
		read(t, m[1])
	}
}

func TestComposedAccountsMayNoMoreThanTheyNeed(t *testing.T) {
	t.Parallel()
	v := yamlOf(t, "compose.yaml")
	made, _ := at(t, v, "services", "postgres", "environment").(map[string]any)["POSTGRES_USER"].(string)
	for name, dsn := range at(t, v, "x-dsns").(map[string]any) {
		if made == "" {
			made = "postgres"
		}
		if strings.Contains(dsn.(string), "//"+made+":") || strings.Contains(dsn.(string), "root:") || strings.Contains(dsn.(string), "{POSTGRES_PASSWORD") {
			t.Errorf("%s is a superuser's", name)
		}
	}
	for _, file := range []string{"deploy/compose/mariadb.sql", "deploy/compose/postgres.sql"} {
		if text := read(t, file); regexp.MustCompile(`(?i)\b(GRANT ALL|ON \*\.\*|GRANT OPTION|SUPERUSER|FILE|pg_\w+)\b`).MatchString(text) {
			t.Errorf("%s grants too much:\n%s", file, text)
		}
	}
}

func TestTheKubernetesManifestsProbeAndHarden(t *testing.T) {
	t.Parallel()
	d := yamlOf(t, "deploy/kubernetes/deployment.yaml")
	pod := at(t, d, "spec", "template", "spec")
	c := at(t, pod, "containers", 0)
	if at(t, pod, "securityContext", "runAsNonRoot") != true || at(t, c, "securityContext", "readOnlyRootFilesystem") != true ||
		at(t, c, "securityContext", "allowPrivilegeEscalation") != false || at(t, c, "securityContext", "capabilities", "drop", 0) != "ALL" {
		t.Errorf("the pod is not hardened: %v", pod)
	}
	routes := read(t, "console/routes.go")
	for probe, path := range map[string]string{"livenessProbe": "/healthz", "readinessProbe": "/readyz"} {
		if at(t, c, probe, "httpGet", "path") != path || !strings.Contains(routes, path) {
			t.Errorf("%s asks %v", probe, at(t, c, probe, "httpGet", "path"))
		}
		if at(t, c, probe, "httpGet", "httpHeaders", 0, "value") != "127.0.0.1:8390" {
			t.Errorf("%s names a Host that the console refuses", probe)
		}
	}
	if grace := at(t, pod, "terminationGracePeriodSeconds"); grace != uint64(35) {
		t.Errorf("the job has %v s to end, it takes up to 20", grace)
	}
	label := "app.kubernetes.io/name"
	for _, l := range []any{at(t, d, "spec", "selector", "matchLabels", label), at(t, yamlOf(t, "deploy/kubernetes/service.yaml"), "spec", "selector", label)} {
		if l != at(t, d, "spec", "template", "metadata", "labels", label) {
			t.Errorf("the selector %v does not find the pods", l)
		}
	}
	for _, file := range at(t, yamlOf(t, "deploy/kubernetes/kustomization.yaml"), "resources").([]any) {
		yamlOf(t, "deploy/kubernetes/"+file.(string))
	}
}

func TestTheUnitIsHardened(t *testing.T) {
	t.Parallel()
	text := read(t, "deploy/systemd/bed-job.service")
	for _, line := range []string{
		"NoNewPrivileges=yes", "DynamicUser=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "CapabilityBoundingSet=",
		"MemoryDenyWriteExecute=yes", "SystemCallFilter=@system-service", "Restart=always", "TimeoutStopSec=35",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the unit has no %s", line)
		}
	}
	section := ""
	known := []string{"[Unit]", "[Service]", "[Install]"}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			if section = line; !slices.Contains(known, line) {
				t.Errorf("the section %s", line)
			}
		case section == "" || !regexp.MustCompile(`^[A-Z][A-Za-z]+=`).MatchString(line):
			t.Errorf("the line %q", line)
		}
	}
}

func TestReleaseStampsTheReportedVersion(t *testing.T) {
	t.Parallel()
	const stamp = "-X github.com/bedsql/bed/cmd/bed-job/internal/cli.stamp="
	release := yamlOf(t, ".goreleaser.yaml")
	if flags := at(t, release, "builds", 0, "ldflags", 0).(string); !strings.Contains(flags, stamp+"{{ .Version }}") {
		t.Errorf("the linker gets %s", flags)
	}
	if !strings.Contains(read(t, "Dockerfile"), stamp+"$VERSION") {
		t.Error("the image's build does not stamp the version")
	}
	if !strings.Contains(read(t, "cmd/bed-job/internal/cli/version.go"), "\nvar stamp string\n") {
		t.Error("the program has no such variable")
	}
	for _, file := range at(t, release, "archives", 0, "files").([]any) {
		read(t, file.(string))
	}
}

func TestReleasePublishesTheImageThatKubernetesRuns(t *testing.T) {
	t.Parallel()
	image := at(t, yamlOf(t, "deploy/kubernetes/kustomization.yaml"), "images", 0, "newName").(string)
	steps := at(t, yamlOf(t, ".github/workflows/release.yml"), "jobs", "release", "steps").([]any)
	published := false
	for _, step := range steps {
		with, _ := step.(map[string]any)["with"].(map[string]any)
		tags, _ := with["tags"].(string)
		published = published || strings.Contains(tags, image+":latest") && with["target"] == "bed-job"
	}
	if !published {
		t.Errorf("no step publishes %s", image)
	}
}

func TestServersOfTheWorkflowAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/compatibility.md")
	for _, server := range at(t, yamlOf(t, ".github/workflows/ci.yml"), "jobs", "server", "strategy", "matrix", "include").([]any) {
		image := at(t, server, "image").(string)
		product, version, _ := strings.Cut(image, ":")
		if line := regexp.MustCompile("`" + product + ":[^\n]*\n?[^\n]*").FindString(page); line == "" {
			t.Errorf("the page does not name %s", product)
		} else if product != "postgres" && !strings.Contains(line, version+"`") {
			t.Errorf("the page does not name %s", image)
		}
	}
	for _, name := range []string{"ci", "release", "security"} {
		if len(at(t, yamlOf(t, ".github/workflows/"+name+".yml"), "jobs").(map[string]any)) == 0 {
			t.Errorf("%s has no job", name)
		}
	}
	yamlOf(t, ".github/dependabot.yml")
}

// A nested module is invisible to ./... of the root.
func TestEveryModuleIsTestedLintedAndUpdated(t *testing.T) {
	t.Parallel()
	modules := []string{"."}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if dir, _ := filepath.Rel(root, filepath.Dir(name)); err == nil && d.Name() == "go.mod" && dir != "." {
			modules = append(modules, filepath.ToSlash(dir))
		}
		return err
	})
	if err != nil || len(modules) < 3 {
		t.Fatalf("the modules are %v, %v", modules, err)
	}
	tested := strings.Fields(regexp.MustCompile(`modules=\((\. .*)\)`).FindStringSubmatch(read(t, "scripts/test.sh"))[1])
	updated, _ := at(t, yamlOf(t, ".github/dependabot.yml"), "updates", 0, "directories").([]any)
	for _, dir := range modules {
		if !slices.Contains(tested, dir) {
			t.Errorf("scripts/test.sh does not test the module %s", dir)
		}
		if !slices.Contains(updated, any("/"+strings.TrimPrefix(dir, "."))) {
			t.Errorf(".github/dependabot.yml does not name the module %s", dir)
		}
		for _, file := range []string{"Makefile", ".github/workflows/ci.yml"} {
			if dir != "." && !strings.Contains(read(t, file), "(cd "+dir+" && golangci-lint run ./...)") {
				t.Errorf("%s does not lint the module %s", file, dir)
			}
		}
	}
}
