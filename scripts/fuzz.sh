#!/usr/bin/env bash
# Spends a time on each of what finds faults by chance: random statements through
# the wrapper and the bare drivers, on servers found as scripts/test.sh finds
# them, and the fuzz targets. The argument is that time, default 1m. A failure
# does not end it: all are listed at the end, and make its exit status 1.
# BED_FUZZ_SEED and BED_FUZZ_VARIANT: internal/test/differential/doc.go.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

time=${1:-1m}
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failures=()

# look runs a command, the name of which comes first, and keeps what it found.
look() {
	local name=$1
	shift
	if ! "$@" </dev/null 2>&1 | tee "$output"; then
		failures+=("$name" "$(grep -vE '^(ok|PASS|FAIL|exit status|fuzz: elapsed|=== |--- PASS)' "$output" | tail -n 200)")
	fi
}

find_servers
say "random statements beside the bare drivers, $time for each variant of the DSN and guarantee"
look "random statements" env BED_FUZZ_TIME="$time" go test -count=1 -timeout 0 ./internal/test/differential

# One at a time, because go test -fuzz takes one target.
targets=$(grep -rn --include='*_test.go' -oE '^func Fuzz\w+' . | sed -E 's/^\.\/(.*)\/[^/]*:[0-9]+:func (.*)/\1 \2/' | sort)
while read -r package target; do
	say "$package $target, $time"
	look "$package $target" go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$package"
done <<<"$targets"

if ((${#failures[@]})); then
	say "$((${#failures[@]} / 2)) found something:"
	printf '\n== %s\n%s\n' "${failures[@]}"
	exit 1
fi
say "nothing was found"
