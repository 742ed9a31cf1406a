# Packages to work on, and further flags of go test: make test PKG=./txlog TESTFLAGS='-run Lease -v'
PKG ?= ./...
TESTFLAGS ?=
# How long make fuzz spends on each DSN variant and target: make fuzz TIME=10m
TIME ?= 1m
# How long make soak makes faults for, and the seed of what it writes and breaks:
# make soak DURATION=3h SEED=7; the mean pause of each of its 16 writers (100ms) and
# the mean time between faults (600ms): make soak PAUSE=10ms BETWEEN=3s
DURATION ?= 30m
SEED ?=
PAUSE ?= $(BED_SOAK_PAUSE)
BETWEEN ?= $(BED_SOAK_BETWEEN)
# How many histories make simulate tries: make simulate SEEDS=100000 SEED=1
SEEDS ?= 3000
# The PostgreSQL of make test-postgres: make test-postgres VERSION=14
VERSION ?= 18
# Flags of the benchmark: make bench BENCHFLAGS='-sections drain'
BENCHFLAGS ?=
export PKG TESTFLAGS

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL := help
.PHONY: help check test screenshots test-mysql-path test-mysql-target test-postgres test-cluster test-tidb test-upgrade test-short model mutants cover fuzz simulate soak pressure endurance bench bench-quick lint fmt vet demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: ## what to run while working: vet, unit tests, and a test of each promise on real servers
	@scripts/check.sh

test: ## vet and test, product packages with the race detector, on real servers that it finds or starts
	@scripts/test.sh

test-mysql-path: ## test as on MySQL, without what only MariaDB has, on a MariaDB that calls itself MySQL
	@scripts/mysql-path.sh

test-mysql-target: ## test on a MySQL 5.6 of npm's as target, with the log elsewhere
	@scripts/test-mysql-target.sh

test-postgres: ## test on a PostgreSQL of npm's: VERSION (18), 14 or 16 to 18
	@scripts/test-postgres.sh $(VERSION)

test-cluster: ## test on clusters that it starts: Galera, a PostgreSQL with its standby, PgBouncer
	@scripts/test-cluster.sh

test-tidb: ## test on a TiDB that it builds from the Go module proxy, by hand: it takes a while
	@scripts/test-tidb.sh

test-upgrade: ## test the jobs of this version and of an older one, REF (the last tag), on the same logs
	@scripts/test-upgrade.sh $(REF)

screenshots: ## take the pictures of docs/images anew, in the console's tests in a browser
	@BED_SCREENSHOTS='$(CURDIR)/docs/images' PKG=./console/e2e TESTFLAGS='-run OperatorClears' scripts/test.sh

test-short: ## test on SQLite only, without servers
	go test -short $(TESTFLAGS) $(PKG)

model: ## search the model of the protocol exhaustively, in each configuration (docs/model)
	@scripts/model.sh

mutants: ## put known faults into the code and see that the simulation notices each
	@scripts/mutants.sh

cover: ## test as above and print the coverage of each function
	@TESTFLAGS='$(TESTFLAGS) -coverprofile=coverage.out -coverpkg=./...' scripts/test.sh
	go tool cover -func=coverage.out

fuzz: ## look for what tests do not know, TIME (1m) for each: random statements beside the bare drivers, and the fuzz targets
	@scripts/fuzz.sh $(TIME)

simulate: ## run SEEDS (3000) seeded histories of the real code over servers in memory, from SEED on
	BED_SIMULATE=$(SEEDS) BED_SIMULATE_SEED=$(SEED) go test -count=1 -timeout 0 -v ./internal/test/simulation

soak: ## write, with a PAUSE (100ms), under faults of every kind, one BETWEEN (600ms) others, for DURATION (30m) from a SEED, and judge what came of it
	@BED_SOAK_PAUSE='$(PAUSE)' BED_SOAK_BETWEEN='$(BETWEEN)' scripts/soak.sh $(DURATION) $(SEED)

pressure: ## drain while a snapshot is held in the log's database, for DURATION (30m), with figures (docs/scale.md)
	BED_TEST_PRESSURE=$(DURATION) go test -count=1 -timeout 0 -v -run Pressure ./internal/test/capacity

endurance: ## write for DURATION (30m) with an outage of a sixth of it, and judge memory and backlog (docs/scale.md)
	BED_TEST_ENDURANCE=$(DURATION) go test -count=1 -timeout 0 -v -run Endurance ./internal/test/capacity

bench: ## measure delivery beside the bare driver and others, in ten to twenty minutes (docs/benchmarks.md)
	@scripts/bench.sh $(BENCHFLAGS)

bench-quick: ## a smaller run of the same in about a minute, ending with one line of name=value
	@scripts/bench.sh -quick $(BENCHFLAGS)

lint: ## run golangci-lint if it is installed, else go vet and staticcheck
	@if command -v golangci-lint >/dev/null; then \
		golangci-lint run $(PKG) && (cd bench && golangci-lint run ./...) && (cd console/e2e && golangci-lint run ./...) && (cd internal/test/libraries && golangci-lint run ./...) && (cd examples && golangci-lint run ./...); \
	else \
		echo "golangci-lint is not installed: go vet and staticcheck"; \
		go vet $(PKG) && go run $(STATICCHECK) $(PKG); \
	fi

fmt: ## format the Go files
	gofmt -w .

vet: ## run go vet
	go vet $(PKG)

demo: ## show what can happen to a write, on SQLite, with real faults
	go run ./cmd/bed-job demo

clean: ## remove what building and testing leave behind
	rm -f coverage.out bed-job
	go clean -testcache
