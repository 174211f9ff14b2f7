#!/usr/bin/env bash
# Compares two revisions, as root, by hand on a machine that does nothing else: both are
# built, each has a rack, and the same calls are measured on one and then on the other,
# N times (20), every other time the other way round.
#
#   sudo bench/compare.sh BEFORE [AFTER [N]]      # AFTER is HEAD; 5 minutes
#   sudo bench/compare.sh HEAD~20                 # what today's last 20 commits cost
#   sudo COPIES=1 bench/compare.sh 39691cf        # without mirrored memory, which 39691cf did not have
#
# For each kind of call it prints both medians and the median of the N ratios after / before,
# with an interval that contains the true one with 95 % confidence or more: it is
# between two of the ordered ratios, as the binomial distribution has it. Nothing is slower
# by 3 % for certain unless its interval begins above 1.03.
set -euo pipefail
cd "$(dirname "$0")/.."
before=${1:?usage: bench/compare.sh BEFORE [AFTER [N]]} after=${2:-HEAD} n=${3:-20}
[ "$n" -ge 6 ] || { echo "compare: six ratios at least make an interval"; exit 2; }
room=$(mktemp -d) repository=$PWD
cleanup() {
  for side in before after; do
    "$room/$side/bin/bifrost" rack down --rack "$side$$" >/dev/null 2>&1 || true
    git -C "$repository" worktree remove --force "$room/$side" 2>/dev/null || true
  done
  rm -rf "$room"
}
trap cleanup EXIT

for side in before after; do
  git worktree add -q --detach "$room/$side" "${!side}"
  # Microseconds are too coarse for a ping: the client prints fractions.
  sed -i 's,"p50_us": p50.Microseconds(),"p50_us": float64(p50) / 1000,' "$room/$side/examples/arrays/client.go"
  cp -r bench/stateful "$room/$side/examples/"
  (cd "$room/$side" && go build -trimpath -o bin/ ./cmd/bifrost ./examples/arrays ./examples/stateful)
  sed "s/^name: .*/name: $side$$/" "$room/$side/examples/rack.yaml" >"$room/$side/rack.yaml"
  echo "  - {name: stateful, blade: s1, command: [stateful, serve], services: [Count], stateful: true}" >>"$room/$side/rack.yaml"
  if [ "${COPIES:-2}" = 1 ] && grep -q '^# machines:' "$room/$side/rack.yaml"; then
    echo "machines: [[m1], [m2], [m3]]" >>"$room/$side/rack.yaml"
  fi
  "$room/$side/bin/bifrost" rack up -c "$room/$side/rack.yaml" >/dev/null
  echo "$side: $(git -C "$room/$side" log -1 --format='%h of %ad, %s' --date=short)"
done

# measure SIDE COMMAND…: the median of one client's calls, in µs; of several callers the time
# per call of all together.
measure() {
  "$room/$1/bin/bifrost" rack exec --rack "$1$$" c1 -- "${@:2}" | sed -n 's/.*"p50_us":\([0-9.]*\).*/\1/p'
}

printf '%-62s %10s %10s %7s  %s\n' calls before after ratio "95 % interval"
while read -r calls; do
  for i in $(seq 0 "$n"); do # the first one warms up
    if [ $((i % 2)) = 0 ]; then b=$(measure before $calls) a=$(measure after $calls); else a=$(measure after $calls) b=$(measure before $calls); fi
    [ "$i" = 0 ] || echo "$b $a"
  done | awk -v calls="$calls" '
    function median(v, n) { return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
    function sort(v, n,   i, j, x) { for (i = 2; i <= n; i++) { x = v[i]; for (j = i - 1; j > 0 && v[j] > x; j--) v[j + 1] = v[j]; v[j + 1] = x } }
    { b[NR] = $1; a[NR] = $2; r[NR] = $2 / $1 }
    END {
      sort(b, NR); sort(a, NR); sort(r, NR)
      # The widest k with P(fewer than k of NR ratios below the median) <= 2.5 %.
      p = 0.5 ^ NR; sum = p
      for (k = 0; sum <= 0.025; k++) { p *= (NR - k) / (k + 1); sum += p }
      printf "%-62s %10.1f %10.1f %7.3f  %.3f to %.3f\n", calls, median(b, NR), median(a, NR), median(r, NR), r[k], r[NR + 1 - k]
    }'
done <<END
arrays ping --count 2000 --json
arrays echo --size 1024 --count 1000 --by value --json
arrays increment --size 16384 --count 500 --by value --json
stateful call 64 500ms
stateful region 1 200ms 64 none
stateful region 1 200ms 64 recover
stateful region 1 200ms 65536 none
stateful region 1 200ms 65536 recover
stateful region 1 300ms 1048576 none
stateful region 1 300ms 1048576 recover
stateful region 64 1s 4096 none
END
echo "measured in $SECONDS s"
