package cli

import (
	"os"
	"testing"

	"github.com/goccy/go-yaml"
)

// The configurations of the examples are read as run reads them.
func TestTheExamplesConfigurationsAreValid(t *testing.T) {
	t.Parallel()
	const root = "../../../../deploy/"
	compose, err := os.ReadFile(root + "compose/bed-job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(root + "kubernetes/configmap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var configMap struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &configMap); err != nil {
		t.Fatal(err)
	}
	lookup := env(map[string]string{
		"BED_LOG_DSN": "bed:x@tcp(mariadb:3306)/bed", "ORDERS_DSN": "bed:x@tcp(mariadb:3306)/orders?parseTime=true",
		"LEDGER_DSN": "postgres://bed:x@postgres:5432/ledger?sslmode=disable",
		"SHOP_TOKEN": "x", "STOCK_DSN": "bed:x@tcp(mariadb:3306)/stock", "NATS_URL": "nats://nats:4222",
		"ANN_HASH": "$2y$05$BbEyZWTmhmVYzY5pbLqlqO7q5h4Y5Nn2Bz0bfsvbcSkHBwYxR8Kqe", "PROMETHEUS_TOKEN_SHA256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
	})
	for name, src := range map[string]string{"compose": string(compose), "kubernetes": configMap.Data["bed-job.yaml"]} {
		cfg, err := parseConfig(name, []byte(src), lookup, wholeFile)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg.console.Listen == "" || len(cfg.targets) < 2 {
			t.Errorf("%s is read as %+v", name, cfg)
		}
	}
}
