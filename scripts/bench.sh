#!/usr/bin/env bash
# Measures what delivery costs beside the bare driver, on servers found as
# scripts/test.sh finds them. One that does not have every commit on the disk,
# or takes too few connections, is left alone, and one of the installed binaries
# is started instead. Arguments go to the benchmark; -h prints them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck disable=SC2034
servers=durable
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

# Other people's wrappers and queues are a module of their own.
contenders=internal/bench/contenders
bench=$work/bench
if go -C "$contenders" mod download 2>"$work/modules.log"; then
	go -C "$contenders" build -buildvcs=false -o "$bench" .
else
	tail -n 3 "$work/modules.log"
	say "without sqlmw, otelsql and river: their modules are out of reach"
	go build -buildvcs=false -o "$bench" ./internal/bench/cmd/bench
fi
find_servers
"$bench" "$@"
