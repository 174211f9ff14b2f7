#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given (default 10s), two at
# a time; the first failure stops it.
set -eu
export FUZZTIME=${1:-10s}
cd "$(dirname "$0")/.."
grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | sed 's|/[^/]*:func | |' |
  xargs -P 2 -L 1 sh -c '
    out=$(go test "$1" -run "^$" -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 10x -parallel 1 2>&1) || { echo "$out"; exit 255; }
    echo "fuzz $1 $2: $(echo "$out" | tail -1)"' sh
