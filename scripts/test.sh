#!/usr/bin/env bash
# What `make test` and CI run: make's stages, and what each took. Those joined by +
# run beside each other, since one of them mostly waits, or has one CPU; those joined
# by commas one after the other meanwhile. Output of all but the first is shown when
# they have ended. A stage that fails keeps no other from running; the last lines say
# which have failed, and the exit status that one has.
#
#   scripts/test.sh [STAGE[,STAGE]…[+STAGE[,STAGE]…]…]…
set -um # each stage has a process group, to be ended as a whole
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- lint+setup unit,race+explore,systemd rack+fuzz+some-mutants
make=${MAKE:-make}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
trap 'echo "== INTERRUPTED after $SECONDS s, in: $group"; for p in $(jobs -p); do kill -- "-$p"; done; exit 143' TERM INT HUP
summary=() failed=()
TIMEFORMAT='%0R %0U %0S'

# stage NAME: runs one, and leaves its status and times in $logs.
stage() {
  { time "$make" --no-print-directory "$1" 2>&1; } 2>"$logs/$1.time"
  echo $? >"$logs/$1.status"
}

# row NAME,NAME…: runs some, one after the other.
row() {
  local name
  for name in ${1//,/ }; do stage "$name"; done
}

# ended NAME: says how it went.
ended() {
  local status wall user sys line
  status=$(cat "$logs/$1.status" 2>/dev/null || echo "?")
  read -r wall user sys < <(tail -n 1 "$logs/$1.time")
  line="$1: $wall s, $((user + sys)) s of CPU"
  if [ "$status" != 0 ]; then
    line="$1: FAILED with status $status, after $wall s"
    failed+=("$1")
  fi
  echo "== $line"
  summary+=("$line")
}

unshare --net --mount true 2>/dev/null && may=may || may="may NOT"
echo "== $(nproc) CPUs, $(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MiB free, Linux $(uname -r), $(go env GOVERSION)," \
  "as $(id -un), who $may make network namespaces"

for group in "$@"; do
  rows=(${group//+/ })
  echo "== $group, $SECONDS s after the start"
  for names in "${rows[@]:1}"; do
    row "$names" >"$logs/$names.out" </dev/null &
  done
  row "${rows[0]}" </dev/null &
  wait
  for names in "${rows[@]:1}"; do
    echo "== output of $names"
    cat "$logs/$names.out"
  done
  for name in ${group//[+,]/ }; do ended "$name"; done
done

echo "== all: $SECONDS s on $(nproc) CPUs"
printf '  %s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  echo "== FAILED: ${failed[*]}"
  exit 1
fi
echo "== passed"
