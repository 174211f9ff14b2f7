#!/usr/bin/env bash
# Runs every fuzz target of the module: those of wire formats for the time given
# (default 10s), those of files, flags and programs for 1s. Two at a time; the
# first failure stops it.
set -eu
export FUZZTIME=${1:-10s}
cd "$(dirname "$0")/.."

# one PACKAGE TARGET: go test's fuzzing may end with "context deadline exceeded"
# when its time is up in the middle of a call, with no input to blame. That run
# says nothing, so it is made again; a real failure names its input.
one() {
  local time=$FUZZTIME
  case $1 in ./gatekeeper/* | ./rack/* | ./rpc/gen* | ./p4/interp* | ./p4/v1model | ./p4/ebpf) time=1s ;; esac
  for try in 1 2 3; do
    if out=$(go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 10x -parallel 1 2>&1); then
      echo "fuzz $1 $2: $(echo "$out" | tail -1)"
      return 0
    fi
    case $out in
      *"Failing input"*) break ;;
      *"context deadline exceeded"*) echo "fuzz $1 $2: ended in mid-call, try $try of 3" ;;
      *) break ;;
    esac
  done
  echo "$out"
  return 255
}
export -f one

grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | sed 's|/[^/]*:func | |' |
  xargs -P 2 -L 1 bash -c 'one "$1" "$2"' bash
