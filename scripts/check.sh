#!/usr/bin/env bash
# Lints and tests the packages that have changed since BASE: commits and what is not
# committed yet. BASE is where this branch left origin/main, or the commit before the last.
#
#   make check              what has changed here
#   BASE=HEAD~5 make check  since five commits ago
set -euo pipefail
cd "$(dirname "$0")/.."
BASE=${BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
if [ -z "$BASE" ]; then
  BASE=HEAD~1
elif [ "$(git rev-parse "$BASE")" = "$(git rev-parse HEAD)" ] && git diff --quiet HEAD; then
  BASE=HEAD~1
fi
dirs=$({ git diff --name-only --diff-filter=d "$BASE" -- '*.go'; git ls-files --others --exclude-standard -- '*.go'; } |
  sed '/\/testdata\//d' | xargs -r -n1 dirname | sort -u | sed 's,^,./,')
if [ -z "$dirs" ]; then
  echo "check: no Go file has changed since $BASE"
  exit 0
fi
# As in the Makefile: linters and tests of whole racks collect their heaps less often.
export GOGC=${GOGC:-400} GOMEMLIMIT=${GOMEMLIMIT:-2GiB}
began=$SECONDS
echo "== lint:" $dirs
go run '-ldflags=-s -w' "$LINT" run --allow-parallel-runners $dirs
echo "== tests, without those that take long (make unit runs all)"
go test -short -vet=off '-ldflags=-s -w' $dirs
echo "== checked in $((SECONDS - began)) s"
