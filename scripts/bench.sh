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

bench=$work/bench
go -C bench build -buildvcs=false -o "$bench" ./cmd/bench
find_servers
"$bench" "$@"
