#!/usr/bin/env bash
# Tests on clusters that the tests bring up on 127.0.0.1 from the distribution's
# packages, and remove: three MariaDB nodes with Galera, a PostgreSQL with its
# synchronous standby, PgBouncer before both (internal/test/cluster). As root on
# Debian and Ubuntu it installs what is missing. TESTFLAGS are for go test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

go build -buildvcs=false -o "$testserver" ./internal/test/testdb/testserver
ensure_binaries
ensure_command pgbouncer pgbouncer
ensure_galera
ensure_faketime
ensure_server postgres BED_TEST_POSTGRES_DSN

read -ra flags <<<"${TESTFLAGS:-}"
say "go test ${flags[*]-} ./internal/test/cluster"
BED_TEST_CLUSTER=full go test -count=1 -timeout 40m -v ${flags[@]+"${flags[@]}"} ./internal/test/cluster
