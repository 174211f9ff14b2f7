#!/usr/bin/env bash
# What `make test` and CI run: make's stages, and what each took. All inputs are fixed:
# seeds, and for each commit its mutants. Those joined by + run beside each other, since
# one of them mostly waits, or has one CPU; those joined by commas one after the other
# meanwhile. Output of all but the first is shown when they have ended. A stage that
# fails keeps no other from running; the last lines say which have failed, and the exit
# status that one has.
#
#   scripts/test.sh [STAGE[,STAGE]…[+STAGE[,STAGE]…]…]…
set -um # each stage has a process group, to be ended as a whole
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- setup lint,unit,race+explore,systemd rack+darwin,some-mutants
make=${MAKE:-make}
for dir in "${TMPDIR:-/tmp}"/bft.*; do
  [ -d "/proc/${dir##*.}" ] || rm -rf "$dir"
done
export TMPDIR=${TMPDIR:-/tmp}/bft.$$ # short: the path of a socket has 108 bytes at most
logs=$TMPDIR/stages
mkdir "$TMPDIR" "$logs" && chmod 1777 "$TMPDIR" || exit # some tests run programs as another user
trap 'rm -rf "$TMPDIR"' EXIT
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

# trim CACHE GIB: cuts Go's build cache to a size, by what was not used for the longest time.
# Go sets the time of an entry that it uses, once an hour.
trim() {
  find "$1"/?? -type f -printf '%T@ %s %p\n' | sort -rn |
    awk -v max="$2" '{ sum += $2 } sum > max * 2 ^ 30 { sub(/^[^ ]* [^ ]* /, ""); print }' | xargs -r -d '\n' rm -f
}

# room DIR…: how many GiB are free in the directory that has least.
room() { df --output=avail -k "$@" | awk 'NR > 1 && (NR == 2 || $1 < least) { least = $1 } END { print int(least / 2 ^ 20) }'; }

cache=$(go env GOCACHE)
mkdir -p "$cache"
[ -z "${BUILD_CACHE_GIB:-}" ] || trim "$cache" "$BUILD_CACHE_GIB"
need=6 free=$(room . "$TMPDIR" "$cache")
unshare --net --mount true 2>/dev/null && may=may || may="may NOT"
echo "== $(nproc) CPUs, $(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MiB of memory and $free GiB of disk free, Linux $(uname -r), $(go env GOVERSION)," \
  "as $(id -un), who $may make network namespaces"
if [ "$free" -lt $need ]; then
  echo "== FAILED: $free GiB of disk are free, the tests need $need: remove what is left in ${TMPDIR%/*}, or empty Go's build cache, which has" \
    "$(du -sBG "$cache" | cut -f1)iB, with: go clean -cache"
  exit 1
fi

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
