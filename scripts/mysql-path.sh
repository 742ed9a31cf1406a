#!/usr/bin/env bash
# Runs the tests of what differs between MySQL and MariaDB as on MySQL: on a MariaDB
# that calls itself MySQL 8.0, so that neither bed nor the libraries use compound
# statements or RETURNING. PKG and TESTFLAGS are as for scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

go build -buildvcs=false -o "$testserver" ./internal/test/testdb/testserver
export BED_TEST_MYSQL_PATH=1
ensure_binaries
ensure_command pgbouncer pgbouncer
ensure_server postgres BED_TEST_POSTGRES_DSN
unset BED_TEST_MYSQL_DSN
serve mysql
export BED_TEST_MYSQL_DSN=$dsn
say "mysql: a MariaDB that calls itself MySQL at $dsn"

# Both hold several words on purpose.
read -ra packages <<<"${PKG:-./bedsql/mysql ./txlog ./asyncjob ./internal/test/acceptance/...}"
read -ra flags <<<"${TESTFLAGS:-}"
say "go test ${flags[*]-} ${packages[*]}"
# On the other databases nothing differs from make test.
go test -count=1 -timeout 45m -p 2 -parallel 4 -skip '/^(postgres|sqlite)$' ${flags[@]+"${flags[@]}"} "${packages[@]}"
[[ ${PKG:-} ]] || go -C internal/test/libraries test -count=1 -timeout 15m -parallel 4 -skip '/^(postgres|sqlite)$' ${flags[@]+"${flags[@]}"} ./mappers ./tracers
