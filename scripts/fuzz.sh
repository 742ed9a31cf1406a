#!/usr/bin/env bash
# Spends a time on each of what finds faults by chance: random statements through
# the wrapper and the bare drivers, on servers found as scripts/test.sh finds
# them, and the fuzz targets. The argument is that time, default 1m.
# BED_FUZZ_SEED and BED_FUZZ_VARIANT: internal/test/differential/doc.go.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

time=${1:-1m}
find_servers
say "random statements beside the bare drivers, $time for each variant of the DSN and guarantee"
BED_FUZZ_TIME=$time go test -count=1 -timeout 0 ./internal/test/differential

# One at a time, because go test -fuzz takes one target.
grep -rn --include='*_test.go' -oE '^func Fuzz\w+' . | sed -E 's/^\.\/(.*)\/[^/]*:[0-9]+:func (.*)/\1 \2/' | sort |
	while read -r package target; do
		say "$package $target, $time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$package" </dev/null
	done
