#!/usr/bin/env bash
# Writes to real servers while everything around them is broken, and judges what
# came of it: internal/test/soak/doc.go. The arguments are for how long, over the
# three kinds of log (default 30m), and the seed (default: a new one). It starts
# and kills servers of its own, so the binaries of MariaDB and PostgreSQL must be
# installed; as root on Debian and Ubuntu it installs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

go build -buildvcs=false -o "$testserver" ./internal/test/testdb/testserver
ensure_binaries mysql
ensure_binaries postgres
say "faults for ${1:-30m}"
BED_SOAK_DURATION=${1:-30m} BED_SOAK_SEED=${2:-} go test -count=1 -v -timeout 0 \
	-run TestUnderFaultsOfEveryKindWhatIsToldIsTrue ./internal/test/soak
