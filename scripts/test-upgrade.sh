#!/usr/bin/env bash
# Tests this version beside an older one on real servers: its job with the older version's entries,
# and the older version's job with its entries.
#
#   scripts/test-upgrade.sh [REF]
#
# REF is a tag or a commit: by default the last tag, or without one the commit before this one. A
# shallow clone has neither: git fetch --unshallow --tags.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/servers.sh
source scripts/servers.sh

ref=${1:-$(git describe --tags --abbrev=0 HEAD~1 2>/dev/null || echo HEAD~1)}
if ! commit=$(git rev-parse --verify --quiet "$ref^{commit}"); then
	say "there is no commit $ref: git fetch --unshallow --tags"
	exit 1
fi

older=$work/older
say "building the programs of $ref (${commit:0:7})"
mkdir -p "$older/source"
git archive "$commit" | tar -x -C "$older/source"
# The program that leaves entries is today's, compiled with the older version's packages.
rm -rf "$older/source/internal/test/upgrade"
mkdir "$older/source/internal/test/upgrade"
cp -r internal/test/upgrade/{entries,leave} "$older/source/internal/test/upgrade"
go -C "$older/source" build -o "$older/" ./cmd/bed-job ./internal/test/upgrade/leave

find_servers
BED_TEST_OLDER=$older go test -count=1 -v -run OlderVersion ./internal/test/upgrade
