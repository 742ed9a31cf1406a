#!/usr/bin/env bash
# Tests the log and the targets on TiDB 6.1's development, which it builds from the
# Go module proxy (about nine minutes, once; kept in the user's cache directory)
# and runs in memory on 127.0.0.1. It is run by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=v1.1.0-beta.0.20220511160835-98c31070d958
parser=v0.0.0-20220511160835-98c31070d958
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bed-tidb
server=$cache/tidb-server-$version
port=${BED_TEST_TIDB_PORT:-24100}

if [[ ! -x $server ]]; then
	echo "building TiDB $version, for about nine minutes"
	mkdir -p "$cache"
	(
		cd "$cache"
		export GOTOOLCHAIN=go1.21.13 GOFLAGS=-mod=mod
		[[ -f go.mod ]] || go mod init tidb-source >/dev/null 2>&1
		go mod download "github.com/pingcap/tidb@$version"
		rm -rf src
		cp -r "$(go env GOMODCACHE)/github.com/pingcap/tidb@$version" src
		chmod -R u+w src
		cd src
		# A module of its own within the repository, which the proxy leaves out.
		go mod edit -replace "github.com/pingcap/tidb/parser=github.com/pingcap/tidb/parser@$parser"
		nice -n 10 go build -o "$server" ./tidb-server
	)
	rm -rf "$cache/src"
fi

work=$(mktemp -d)
"$server" -P "$port" -host 127.0.0.1 -status $((port + 1)) -store unistore -path "$work/data" -socket "" \
	-log-file "$work/log" -log-slow-query "$work/slow" -L error >"$work/out" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
export BED_TEST_TIDB_DSN="root@tcp(127.0.0.1:$port)/?parseTime=true"
go build -buildvcs=false -o "$work/testserver" ./internal/test/testdb/testserver
for _ in $(seq 150); do
	BED_TEST_MYSQL_DSN=$BED_TEST_TIDB_DSN "$work/testserver" find mysql >/dev/null 2>&1 && break
	kill -0 "$pid" || { cat "$work/out"; exit 1; }
	sleep 0.2
done
BED_TEST_CLUSTER=full go test -count=1 -timeout 40m -v -run TiDB ./internal/test/cluster
