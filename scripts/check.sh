#!/usr/bin/env bash
# The tests to run while one works: vet, everything on SQLite and in memory, a
# hundred histories of each family of the simulation (three hundred take one processor
# more than three minutes), the crash matrix of a local transaction, and one test of each
# promise on MariaDB and PostgreSQL. What has passed and is not touched is taken from go
# test's cache. PKG and TESTFLAGS are as for scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Tests that ask for the directory of temporary files are cached for the same one only, and
# servers.sh makes a new one.
same=${TMPDIR:-/tmp}
# shellcheck source=scripts/servers.sh
source scripts/servers.sh
# shellcheck source=scripts/tests.sh
source scripts/tests.sh

# Both hold several words on purpose.
read -ra packages <<<"${PKG:-./...}"
read -ra flags <<<"${TESTFLAGS:-}"

go vet "${packages[@]}"
export BED_SIMULATE=${BED_SIMULATE:-100} BED_SIMULATE_SEED=${BED_SIMULATE_SEED:-1}
failed=0
TMPDIR=$same go test -short -vet=off -skip '^TestCrashMatrix$/^sqlite$/^[^l]' ${flags[@]+"${flags[@]}"} "${packages[@]}" | { grep -v '\[no test files\]$' || true; } || failed=1
if [[ ${PKG:-./...} == ./... ]]; then # make always sets it
	for module in examples internal/test/libraries; do
		TMPDIR=$same go -C "$module" test -short ${flags[@]+"${flags[@]}"} ./... | { grep -v '\[no test files\]$' || true; } || failed=1
	done
	find_servers
	go test -vet=off -parallel 4 -run "$(each_promise)" ./internal/test/acceptance/... || failed=1
fi
exit "$failed"
