#!/usr/bin/env bash
# Runs every fuzz target of the module: parsers of what comes from a wire for the time
# given (default 3s), others for less. A package at a time for each CPU, and last in
# line for it, so that other tests may run beside it; the first failure stops it.
set -eu
cd "$(dirname "$0")/.."
export FUZZTIME=${1:-3s} built
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

# howlong PACKAGE TARGET: the parsers of what comes from a wire have the time that was
# asked for; what acts upon it (servers, tables of calls, transfers), 2s; files, flags
# and programs, 1s.
howlong() {
  case "$1 $2" in
    ./rpc/rpcpacket* | ./rpc/trailer* | ./rpc/record* | ./dsm/dsmpacket* | ./internal/frame* | ./internal/join/* | ./p4/ebpf*) echo "$FUZZTIME" ;;
    "./internal/control FuzzParse" | "./internal/control FuzzPeer" | *FuzzDecode | ./p4/softswitch/*Receive | *FuzzHeader | *FuzzProcess | *FuzzPacketIn) echo "$FUZZTIME" ;;
    "./rpc FuzzReference" | ./rpc/stub* | ./internal/crash* | ./internal/pairing*) echo 1s ;;
    "./rpc "* | ./dsm/* | ./internal/* | *FuzzWrite | *FuzzRead | *FuzzStreamOther | *FuzzRequest | *FuzzReadStream) echo 2s ;;
    *) echo 1s ;;
  esac
}

# fuzz PACKAGE TARGET…: fuzzes guided by coverage what stands on little, and the rest
# without, since to compile all that a Gatekeeper stands on once more for it takes
# longer than all the fuzzing. Go test's fuzzing may end with "context deadline exceeded"
# when its time is up in the middle of a call, with no input to blame. That run
# says nothing, so it is made again; a real failure names its input.
fuzz() {
  local package=$1 binary target time out guided=
  shift
  binary=$built/${package//\//_}
  case $package in
    ./rpc/rpcpacket* | ./rpc/trailer* | ./rpc/record* | ./dsm/dsmpacket* | ./internal/frame* | ./internal/control* | ./internal/join/*) guided=-fuzz=. ;;
  esac
  go test -c -vet=off '-ldflags=-s -w' $guided -o "$binary" "$package"
  cd "$package"
  for target in "$@"; do
    time=$(howlong "$package" "$target")
    for try in 1 2 3; do
      if out=$("$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x \
        -test.parallel 1 -test.fuzzcachedir "$binary.corpus" 2>&1); then
        echo "fuzz $package $target: $time, $(echo "$out" | sed -n 's/.* execs: \([0-9]*\) .*/\1 inputs/p' | tail -1)"
        continue 2
      fi
      case $out in
        *"Failing input"*) break ;;
        *"context deadline exceeded"*) echo "fuzz $package $target: ended in mid-call, try $try of 3" ;;
        *) break ;;
      esac
    done
    echo "$out"
    return 255
  done
  rm -rf "$binary" "$binary.corpus"
}
export -f howlong fuzz

# A line for each package: "./dsm/dsmpacket FuzzParse FuzzPointer", the longest first.
grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | sed 's|/[^/]*:func | |' |
  awk '{ at[$1] = at[$1] " " $2; n[$1]++ } END { for (p in at) print n[p], p at[p] }' | sort -rn | cut -d' ' -f2- |
  xargs -P "$(nproc)" -L 1 nice -n 19 bash -c 'set -eu; fuzz "$@"' bash
