#!/usr/bin/env bash
# Writes to real servers while everything around them is broken, and judges what
# came of it: internal/test/soak/doc.go. The arguments are for how long, over the
# three kinds of log and a run with contention (default 30m), the seed (default: a new one), and after how
# long it is ended although it is not done (default: never). BED_SOAK_PAUSE and
# BED_SOAK_BETWEEN say how often is written and broken. It starts and kills
# servers of its own, so the binaries of MariaDB and PostgreSQL must be installed,
# and libfaketime, which sets the clock of the log's server; as root on Debian and
# Ubuntu it installs them. As root it mounts a small file system and fills it under
# the log in SQLite, in a mount namespace of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

ensure_binaries
ensure_faketime || true
apart=()
if unshare --mount true 2>/dev/null; then
	apart=(unshare --mount)
fi
say "faults for ${1:-30m}"
BED_SOAK_DURATION=${1:-30m} BED_SOAK_SEED=${2:-} ${apart[@]+"${apart[@]}"} go test -count=1 -v -timeout "${3:-0}" \
	-run TestAnswersAreTrueUnderFaultsOfEveryKind ./internal/test/soak
