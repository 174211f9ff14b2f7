#!/usr/bin/env bash
# The rack of docs/operators.md with systemd: a machine with the switch and the
# Gatekeeper, a memory blade and two compute blades. Each machine is a systemd of its own
# in its own namespaces, with the units as they are installed by the handbook's commands.
# An app is deployed, each service is killed and comes back, and all of them stop cleanly.
set -eu
cd "$(dirname "$0")/.."
if [ ! -x /lib/systemd/systemd ] || ! unshare --net --mount --cgroup --pid --fork true 2>/dev/null; then
  echo "systemd-test: skipped: needs systemd, and root for namespaces"
  exit 0
fi
repo=$PWD
dir=$(mktemp -d)
declare -A pid
fail() {
  echo "systemd-test: FAILED: $*" >&2
  for m in "${!pid[@]}"; do on "$m" journalctl --no-pager -n 40 -u 'bifrost-*' >&2 || true; done
  exit 1
}
cleanup() {
  for m in "${!pid[@]}"; do kill -KILL "${pid[$m]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$dir"
  for m in tor m1 c1 c2; do
    for h in "${hierarchies[@]}"; do find "$h/bifrost-test-$$-$m" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
  done
}
hierarchies=()
for h in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
  [ ! -w "$h/cgroup.procs" ] || hierarchies+=("$h")
done
trap cleanup EXIT

# boot MACHINE: starts systemd as the first process of new namespaces. Its file system is
# this machine's under an overlay, so that nothing that is installed there stays.
boot() {
  mkdir -p "$dir/$1"
  mkfifo "$dir/$1.booted"
  for h in "${hierarchies[@]}"; do mkdir -p "$h/bifrost-test-$$-$1"; done
  (
    for h in "${hierarchies[@]}"; do echo "$BASHPID" >"$h/bifrost-test-$$-$1/cgroup.procs"; done
    exec unshare --net --mount --cgroup --uts --ipc --pid --fork --kill-child scripts/systemd-boot.sh "$1" "$dir/$1" "$dir/$1.booted"
  ) >"$dir/$1.log" 2>&1 &
  # The machine's first line says that systemd is about to run; its process is unshare's child.
  read -r -t 120 _ <"$dir/$1.booted" || { cat "$dir/$1.log"; fail "machine $1 does not boot"; }
  pid[$1]=$(pgrep -P $!)
}
# on MACHINE COMMAND...: runs a command there.
on() { nsenter -t "${pid[$1]}" -m -u -i -n -p -C -r "${@:2}"; }
# until_ok COMMAND...: repeats a command that asks for something until it succeeds, for two minutes: the machine may be busy.
until_ok() {
  local end=$((SECONDS + 120))
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    read -r -t 0.1 _ <>"$dir/pause" || true
  done
}
mkfifo "$dir/pause"
# cable MACHINE PORT: an Ethernet link from the machine's eth1 to the switch's PORT.
cable() {
  ip link add "$2" netns "${pid[tor]}" type veth peer name eth1 netns "${pid[$1]}"
}

# The handbook's commands, as they stand there; what "make build" builds is there.
install=$(sed -n 's/^make build && sudo \(make install\) .*/\1/p; /^install .*sysusers/,/^install -Dm644 -t .etc.bifrost/p' docs/operators.md)
[ "$(wc -l <<<"$install")" -eq 4 ] || fail "docs/operators.md has other commands for the installation: $install"

for m in tor m1 c1 c2; do boot $m; done
cable m1 eth1
cable c1 eth2
cable c2 eth3
for m in tor m1 c1 c2; do
  until_ok on $m systemctl is-active --quiet basic.target || fail "systemd of $m does not start"
  on $m sh -euc "cd '$repo'; $install" || fail "installation on $m"
  on $m systemctl daemon-reload
done
on m1 sed -i 's/64GiB/64MiB/' /etc/bifrost/memory.env
on tor sed -i 's/^BIFROST_PORTS=.*/BIFROST_PORTS=-p 1=m1:memory -p 2=c1:compute -p 3=c2:compute/' /etc/bifrost/gatekeeper.env

enable() {
  line=$(sed -n "s/^\(systemctl enable --now .*[^ ]\) *# $2\$/\1/p" docs/operators.md)
  [ -n "$line" ] || fail "docs/operators.md has no command for \"$2\""
  on "$1" sh -c "${line/--now/--now --no-block}" || fail "$line"
}
for port in eth1 eth2 eth3; do on tor ip link set "$port" mtu 9000 up; done
enable c1 "on a compute blade" # The order does not matter.
enable m1 "on a memory blade"
enable tor "where the switch is"
enable c2 "on a compute blade"

units() { case $1 in tor) echo bifrost-switch bifrost-gatekeeper ;; m1) echo bifrost-memory ;; *) echo bifrost-compute ;; esac; }
active() {
  local m
  for m in tor m1 c1 c2; do on $m systemctl is-active --quiet $(units $m) || return 1; done
}
until_ok active || fail "not all services have started"
echo "systemd-test: all services have started"

ask() { on tor bifrost "$@" --admin-addr unix:/run/bifrost-gatekeeper/admin.sock; }
sed '/spares:/d' examples/arrays/app.yaml >"$dir/app.yaml" # The rack has no room for spares.
ask deploy /dev/stdin <"$dir/app.yaml" || fail "deploy"
nodes() { [ "$(ask nodes --json | grep -c Arrays)" -eq 2 ]; }
until_ok nodes || fail "the app has not started: $(ask apps)"

printed() { ask logs arrays | grep -q "Arrays is served by"; }
until_ok printed || fail "bifrost logs does not show what the app prints: $(ask logs arrays 2>&1)"

# killed MACHINE UNIT TIMES: the service has come back so many times.
killed() {
  on "$1" systemctl kill --signal=KILL --kill-who=main "$2"
  until_ok restarted "$@" || fail "$2 of $1 has not come back"
}
restarted() { [ "$(on "$1" systemctl show -P NRestarts "$2")" -eq "$3" ] && on "$1" systemctl is-active --quiet "$2"; }

# Every service is killed and comes back, one of them more often than systemd allows by
# default; the app goes on.
for m in tor m1 c1 c2; do
  for u in $(units $m); do
    killed $m $u 1
    until_ok active || fail "after $u of $m was killed"
  done
done
for times in 2 3 4 5 6 7 8; do killed c2 bifrost-compute $times; done
until_ok nodes || fail "the app is not whole: $(ask apps)"
echo "systemd-test: each service was killed and came back, the app too"

for m in c1 c2 m1 tor; do
  for u in $(units $m); do
    on $m systemctl stop $u
    [ "$(on $m systemctl show -P Result $u)" = success ] || fail "$u of $m did not stop cleanly: $(on $m systemctl status --no-pager $u)"
  done
done
echo "systemd-test: all services have stopped cleanly"
