#!/usr/bin/env bash
# Puts each fault of testdata/mutants into the code and demands that the
# simulation notices it. Arguments are names of mutants; none means all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BED_MUTANTS="${*:-all}" go test -count=1 -timeout 0 -v -run '^TestEveryMutantIsCaught$' ./internal/test/mutants
