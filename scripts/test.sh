#!/usr/bin/env bash
# Runs the tests against real databases: finds MariaDB/MySQL and PostgreSQL or
# starts them, vets and tests the packages, and stops what it started. It shows
# what fails, and closes with what was skipped, what failed, and the counts.
#
#   PKG            packages to test, default ./...
#   TESTFLAGS      further flags of go test, for example '-run Commit -v'
#   BED_TEST_LONG=1
#                  also what takes long: clusters, capacity; lost answers in the crash matrix,
#                  and the matrix on servers; twenty thousand messages through each broker; the
#                  race detector wherever it may find something
#   BED_TEST_MYSQL_DSN, BED_TEST_POSTGRES_DSN
#                  servers to use: accounts that may create databases
#   BED_TEST_SERVERS=own
#                  start servers from binaries, whatever the variables name
#   BED_TEST_MYSQL_PORT, BED_TEST_POSTGRES_PORT
#                  local ports to look at instead of 3306 and 5432
#
# Where a server comes from otherwise, scripts/servers.sh says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh
# shellcheck source=scripts/tests.sh
source scripts/tests.sh

ensure_race_detector() {
	race=(-race)
	if command -v "$(go env CC)" >/dev/null; then
		export CGO_ENABLED=1
	elif can_install && apt_install gcc libc6-dev; then
		export CGO_ENABLED=1
	else
		say "testing without the race detector: there is no C compiler"
		race=()
	fi
}

# Every parallel test has pools of its own, and a PostgreSQL takes a hundred
# connections unless told otherwise.
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
((jobs <= 4)) || jobs=4

# The tests of a package wait more than they compute.
parallel=$((2 * jobs))
((parallel <= 4)) || parallel=4

find_servers
ensure_binaries
ensure_command pgbouncer pgbouncer
ensure_command nginx nginx
ensure_command caddy caddy
ensure_galera
ensure_command promtool prometheus
ensure_race_detector

# Both hold several words on purpose.
read -ra packages <<<"${PKG:-./...}"
read -ra flags <<<"${TESTFLAGS:-}"

# The benchmark is a module of its own, so that what it is compared with is nobody's
# dependency, and so are the examples, and the tests in a browser and with applications' libraries.
case ${PKG:-./...} in
./...) modules=(. examples internal/test/libraries bench console/e2e) ;;
./console/e2e) modules=(console/e2e) ;;
./examples | ./internal/test/libraries) modules=("${PKG#./}") ;;
*) modules=(.) ;;
esac

# go_test MODULE FLAG...: a run of go test, as events for gotestsum.
go_test() {
	say "go test in $1: ${*:2}" >&2
	go -C "$1" test -json -count=1 "${@:2}"
}

# Packages that take minutes go first, so that the last to end is a short one.
long='/internal/test/acceptance|/bed-job/internal/(cli|brokers)$|/internal/test/(differential|cluster)$|/(message|txlog|asyncjob)$'

# run_tests MODULE: its tests. Product packages run with the race detector. Those that compare
# values and texts or run commands, and internal/test, do so with BED_TEST_LONG only. Tests in
# which it would find nothing never do: no product code runs there, or one goroutine at a time
# (simulation), or processes that are killed (the crash matrix).
run_tests() {
	local more=() raced=() plain=() package failed=0 building=
	case $1 in
	bench) go_test bench -timeout 10m ${flags[@]+"${flags[@]}"} ./... && return ;;
	console/e2e) go_test console/e2e -timeout 20m ${flags[@]+"${flags[@]}"} ./... && return ;;
	examples | internal/test/libraries) go_test "$1" -timeout 20m -parallel "$parallel" ${flags[@]+"${flags[@]}"} ./... && return ;;
	.)
		more=(-vet=off -timeout 60m -p "$jobs" -parallel "$parallel" ${flags[@]+"${flags[@]}"})
		for package in $(go list "${packages[@]}" | awk -v long="$long" '$0 ~ long { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'); do
			case $package in
			*/internal/test/cluster | */internal/test/capacity)
				if [[ ${BED_TEST_LONG:-} ]]; then raced+=("$package"); elif [[ ${PKG:-./...} != ./... ]]; then plain+=("$package"); fi ;;
			*/internal/test/acceptance/crashmatrix | */internal/test/simulation | */internal/test/cases | */internal/test/leaks | \
				*/internal/test/mutants | */internal/test/testdb* | */internal/test/testproxy | */internal/docs) plain+=("$package") ;;
			*/internal/test/* | */cmd/bed-job/* | */bedsql/mysql | */bedsql/postgres | */bedsql/sqlite | \
				*/internal/sqltext | */internal/ops) if [[ ${BED_TEST_LONG:-} ]]; then raced+=("$package"); else plain+=("$package"); fi ;;
			*) raced+=("$package") ;;
			esac
		done
		if ((${#plain[@]} && ${#raced[@]})); then
			# These tests wait for disks and servers, and leave processors to the compiler.
			nice go list ${race[@]+"${race[@]}"} -test -deps -export "${raced[@]}" >/dev/null 2>&1 &
			building=$!
		fi
		case ${flags[*]-} in
		*-run* | *-skip*) ;; # they say themselves which
		*) [[ ${BED_TEST_LONG:-} ]] || more+=(-skip '^TestCrashMatrix$/^(mysql|postgres)$|^TestCrashMatrix$/^sqlite$/_first_answer_lost$') ;;
		esac
		((!${#plain[@]})) || go_test . "${more[@]}" "${plain[@]}" || failed=1
		[[ ! $building ]] || wait "$building" || true # go test says it again
		((!${#raced[@]})) || go_test . ${race[@]+"${race[@]}"} "${more[@]}" "${raced[@]}" || failed=1
		return "$failed"
		;;
	esac
	return 1
}

for module in "${modules[@]}"; do
	say "go vet in $module"
	if [[ $module == . ]]; then
		go vet "${packages[@]}"
	else
		go -C "$module" vet ./...
	fi
done
[[ ${modules[*]} != *e2e ]] || ensure_browser

# The other modules' tests run beside the first one's, and are reported after them.
{
	failed=0
	for module in "${modules[@]}"; do
		[[ $module == "${modules[0]}" ]] || run_tests "$module" || exit
	done >"$work/beside" &
	others=$!
	run_tests "${modules[0]}" || failed=1
	wait "$others" || failed=1
	cat "$work/beside"
	exit "$failed"
} | report
