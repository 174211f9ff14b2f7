#!/usr/bin/env bash
# Looks for inputs that fail, by hand or nightly: every fuzz target for the time given
# (default 1m), guided by coverage, and every property test (rapid) with values that it
# has not drawn before. What earlier runs have found interesting is in Go's cache, and
# they go on from there. `make unit` runs what is fixed: the seeds, and each property
# with the same values.
#
#   scripts/fuzz.sh [TIME [PATTERN]]    PATTERN: of "PACKAGE TARGET", such as "dsm/.* FuzzParse"
#
# A package at a time for each CPU, last in line for it. A target that fails keeps no
# other from running; its input stands in its package's testdata/fuzz, to be committed
# with the repair.
set -eu
cd "$(dirname "$0")/.."
export FUZZTIME=${1:-1m}
pattern=${2:-.}

# fuzz PACKAGE TARGET: go test's fuzzing may end with "context deadline exceeded" when its
# time is up in the middle of a call, with no input to blame. That run has found nothing.
fuzz() {
  local out
  if out=$(go test -vet=off '-ldflags=-s -w' -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 10x -parallel 1 -timeout 0 "$1" 2>&1); then
    echo "fuzz $1 $2: $FUZZTIME, $(echo "$out" | sed -n 's/.* execs: \([0-9]*\) .*/\1 inputs/p' | tail -1)"
  elif [[ $out == *"context deadline exceeded"* && $out != *"Failing input"* ]]; then
    echo "fuzz $1 $2: $FUZZTIME, and ended in mid-call"
  else
    printf '%s\n' "$out" "fuzz $1 $2: FAILED"
    return 1
  fi
}

# properties PACKAGE: ten times as many values as "unit" draws.
properties() {
  local tests
  tests=$(cd "$1" && awk '/^func Test/ { name = $2; sub(/\(.*/, "", name) } /rapid\.Check\(/ { print name }' ./*_test.go | sort -u | paste -sd '|')
  RAPID_SEED=0 RAPID_CHECKS=1000 go test -count=1 -vet=off '-ldflags=-s -w' -timeout 0 -run "^($tests)\$" "$1" || { echo "properties $1: FAILED"; return 1; }
}
export -f fuzz properties

{
  grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |; s|^|fuzz |'
  grep -rl --include='*_test.go' 'rapid\.Check(' . | xargs -n1 dirname | sed 's|^|properties |'
} | sort -u | grep -E -- "$pattern" | xargs -P "$(nproc)" -L 1 nice -n 19 bash -c '"$@"' bash
