#!/usr/bin/env bash
# Runs the tests against real databases: finds MariaDB/MySQL and PostgreSQL or
# starts them, vets and tests the packages, and stops what it started.
#
#   PKG            packages to test, default ./...
#   TESTFLAGS      further flags of go test, for example '-run Commit -v'
#   BED_TEST_MYSQL_DSN, BED_TEST_POSTGRES_DSN
#                  servers to use: accounts that may create databases
#   BED_TEST_MYSQL_PORT, BED_TEST_POSTGRES_PORT
#                  local ports to look at instead of 3306 and 5432
#
# Where a server comes from, first that works: the variable, the usual local
# address, docker compose, installed binaries, and for root on Debian and
# Ubuntu, apt-get.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'test.sh: %s\n' "$*"; }

work=$(mktemp -d)
testserver=$work/testserver
# The bash of macOS takes an empty array for an unset one, hence ${x[@]+…} below.
private=()  # process ids of servers started from binaries
composed=() # services started by docker compose

cleanup() {
	local status=$?
	trap - EXIT
	local pid service
	for pid in ${private[@]+"${private[@]}"}; do
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	for service in ${composed[@]+"${composed[@]}"}; do
		docker compose rm --stop --force --volumes "$service" >/dev/null 2>&1 ||
			say "could not stop the container of $service; stop it with: docker compose down"
	done
	rm -rf "$work"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

can_install() { [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; }

# apt_install PACKAGE...: its output is shown only if it fails.
apt_install() {
	say "installing $* with apt-get"
	if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y --no-install-recommends "$@"; } >"$work/apt.log" 2>&1; then
		tail -n 20 "$work/apt.log"
		say "apt-get could not install $*"
		return 1
	fi
}

# package DRIVER: the Debian package that holds the server.
package() {
	case $1 in
	mysql) echo mariadb-server ;;
	postgres) echo postgresql ;;
	esac
}

# ensure_binaries DRIVER: what the tests that start servers of their own need.
ensure_binaries() {
	local why
	if why=$("$testserver" installed "$1" 2>&1); then
		say "$1: server binaries are installed"
	elif ! can_install; then
		say "$1: tests that start a server of their own will fail: $why"
	elif apt_install "$(package "$1")"; then
		say "$1: server binaries were installed"
	fi
}

# serve DRIVER: starts a server that lives until cleanup; its DSN goes to $dsn.
serve() {
	local in=$work/$1.in out=$work/$1.out
	mkfifo "$in" "$out"
	"$testserver" serve "$1" <"$in" >"$out" 2>"$work/$1.err" &
	private+=("$!")
	# The server ends when nobody holds this any more, even if the script is
	# killed and cannot clean up.
	# shellcheck disable=SC2034
	exec {hold}>"$in"
	if ! read -r dsn <"$out"; then
		say "$1: could not start a server of the installed binaries:"
		cat "$work/$1.err"
		return 1
	fi
}

# compose DRIVER: starts a container, unless there is no docker to do so.
compose() {
	command -v docker >/dev/null && docker compose version >/dev/null 2>&1 &&
		docker info >/dev/null 2>&1 || return 1
	say "$1: starting a container with docker compose"
	composed+=("$1")
	docker compose up --detach --wait "$1" >"$work/compose.log" 2>&1 || {
		tail -n 20 "$work/compose.log"
		return 1
	}
}

# ensure_server DRIVER VARIABLE: exports the variable with a DSN that works.
ensure_server() {
	local driver=$1 variable=$2 dsn=
	if [[ -n ${!variable:-} ]]; then
		if "$testserver" find "$driver" >/dev/null 2>"$work/find.err"; then
			say "$driver: using the server of $variable"
			export "${variable?}"
			return
		fi
		cat "$work/find.err"
		say "$driver: looking elsewhere than $variable"
		unset "$variable"
	fi
	if dsn=$("$testserver" find "$driver" 2>/dev/null); then
		say "$driver: using the local server at $dsn"
	elif compose "$driver" && dsn=$("$testserver" find "$driver" 2>/dev/null); then
		say "$driver: using the container at $dsn"
	elif "$testserver" installed "$driver" 2>/dev/null && serve "$driver"; then
		say "$driver: started the installed binaries at $dsn"
	elif can_install && apt_install "$(package "$driver")" && serve "$driver"; then
		say "$driver: started the binaries just installed at $dsn"
	else
		say "$driver: no server: set $variable to the DSN of an account that may create databases," \
			"start docker, or install $(package "$driver")"
		exit 1
	fi
	export "$variable=$dsn"
}

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

go build -buildvcs=false -o "$testserver" ./internal/testdb/testserver
ensure_server mysql BED_TEST_MYSQL_DSN
ensure_server postgres BED_TEST_POSTGRES_DSN
ensure_binaries mysql
ensure_binaries postgres
ensure_race_detector

# Both hold several words on purpose.
read -ra packages <<<"${PKG:-./...}"
read -ra flags <<<"${TESTFLAGS:-}"
say "go vet ${packages[*]}"
go vet "${packages[@]}"
say "go test ${race[*]-} ${flags[*]-} ${packages[*]}"
go test ${race[@]+"${race[@]}"} -count=1 -timeout 45m -p "$jobs" -parallel "$jobs" ${flags[@]+"${flags[@]}"} "${packages[@]}"
