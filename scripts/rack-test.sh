#!/usr/bin/env bash
# The rack as real processes, as root: in network namespaces with the software
# switch (and bmv2 where simple_switch_grpc is on PATH), then under Mininet.
# Programs, blades, memory blades among them, and the Gatekeeper are killed; TORTURE says
# how long at random (20s). Nothing may be left behind.
set -eu
cd "$(dirname "$0")/.."
if ! unshare --net --mount true 2>/dev/null; then
  echo "rack-test: skipped: needs root for network namespaces (sudo make rack)"
  exit 0
fi
bifrost=$PWD/bin/bifrost
name=ci$$
config=$(mktemp --suffix .yaml)
sed "s/^name: .*/name: $name/" examples/rack.yaml >"$config"
hold=
patience=120 # seconds for what must come, on a busy machine
cleanup() {
  [ -z "$hold" ] || kill "$hold" 2>/dev/null || true
  "$bifrost" rack down --rack "$name" >/dev/null 2>&1 || true
  rm -rf "$config" "$config".*
}
trap cleanup EXIT
fail() { echo "rack-test: FAILED: $*" >&2; exit 1; }
run() { "$bifrost" rack exec --rack "$name" "$@"; }

# works PROGRAM…: has a client work on c1, again and again, until rests. The output of
# the last one is in $config.calls.
works() {
  touch "$config.work"
  while [ -e "$config.work" ]; do
    run c1 -- "$@" >"$config.calls" || exit 1
  done &
  hold=$!
}
rests() {
  rm "$config.work"
  wait "$hold" || fail "a call failed while $1"
  hold=
  cat "$config.calls"
}

# sends COUNT WHILE: waits until c1 has sent so many more packets: the client has got on,
# or asks again for what nobody answers.
sends() {
  local until=
  while :; do
    kill -0 "$hold" 2>/dev/null || fail "a call failed while $2"
    now=$(ip netns exec "bf-$name-c1" awk '$1 == "Ip6OutRequests" { print $2 }' /proc/net/snmp6)
    until=${until:-$((now + $1))}
    [ "$now" -lt "$until" ] || break
  done
}

# restarts COUNT: the Gatekeeper is killed again and again while clients work, one
# after the other, COUNT calls each; every result is right, and nothing is left: no
# region, no rule, no call.
restarts() {
  local what="the Gatekeeper was restarted"
  works arrays add --size 65536 --count "$1" --by reference
  for kills in 1 2 3 4; do
    sends 200 "$what"
    "$bifrost" rack fail gatekeeper --rack "$name" >/dev/null || fail "rack fail gatekeeper"
    sends 5 "$what"
    "$bifrost" rack restore gatekeeper --rack "$name" >/dev/null || fail "rack restore gatekeeper"
  done
  rests "$what"
  # What clients have left goes when the Gatekeeper has fenced them, which takes a moment.
  local end=$((SECONDS + patience))
  while :; do
    left=$("$bifrost" regions --rack "$name" --json; "$bifrost" calls --rack "$name" --json)
    [ -n "$left" ] || break
    [ $SECONDS -lt $end ] || fail "left after $kills restarts of the Gatekeeper: $left"
  done
  echo "$kills restarts of the Gatekeeper changed no result and left nothing"
}

# failover: the program that serves is killed, and when it is back its blade, while a
# client works: every result is right. The blade comes back as a spare.
failover() {
  local what="its callee was killed, or its blade" before now end=$((SECONDS + patience))
  serves() { "$bifrost" nodes --rack "$name" --json | grep '"Arrays"' || true; }
  works arrays echo --size 1024 --count 1200 --by value
  sends 200 "$what"
  before=$(serves)
  "$bifrost" rack fail arrays --rack "$name" || fail "rack fail arrays"
  until now=$(serves); [ -n "$now" ] && [ "$now" != "$before" ]; do
    [ $SECONDS -lt $end ] || fail "the program that was killed is not back: $now"
  done
  sends 200 "$what"
  "$bifrost" rack fail s2 --rack "$name" || fail "rack fail s2"
  run c1 -- arrays echo --size 1024 --count 10 --by value || fail "the spare does not serve"
  rests "$what"
  "$bifrost" rack status --rack "$name" | grep arrays
  "$bifrost" rack restore s2 --rack "$name" || fail "rack restore s2"
}

# one_rack SWITCH COUNT: the main job on one kind of switch.
one_rack() {
  echo "== rack in namespaces, switch $1"
  "$bifrost" rack up -c "$config" --switch "$1" >/dev/null || fail "rack up --switch $1"
  run c1 -- ping -c 3 -i 0.2 -q fd00:b1f0:0:1::2 >/dev/null || fail "ping c1 to s1"
  "$bifrost" status --rack "$name" | grep -q "switch connected" || fail "bifrost status"
  run c1 -- arrays ping --count 100
  run c1 -- arrays add --size 2097152 --count "$2" --by reference
  run c1 -- arrays increment --size 16384 --count "$2" --by value
  restarts "$((20 * $2))"
  failover
  run c1 -- arrays hold >"$config.pointer" &
  hold=$!
  until [ -s "$config.pointer" ]; do kill -0 "$hold" || fail "arrays hold"; sleep 0.05; done
  if out=$(timeout $patience "$bifrost" rack exec --rack "$name" s1 -- arrays peek "$(cat "$config.pointer")" 2>&1); then
    fail "a stranger's read was let through: $out"
  fi
  case $out in *"permission denied"*) echo "a stranger's read: $out" ;; *) fail "a stranger's read: $out" ;; esac
  kill "$hold"; wait "$hold" || true; hold=; rm -f "$config.pointer"
  "$bifrost" rack down --rack "$name" >/dev/null || fail "rack down"
  if ip netns list | grep -q "bf-$name-" || pgrep -f "/run/bifrost/$name" >/dev/null || [ -e "/run/bifrost/$name" ]; then
    fail "rack down left something behind"
  fi
}

# mtus: the example by reference and by value at other MTUs, the smallest of IPv6 among
# them. docs.TestTutorial does so with a service that has state.
mtus() {
  for mtu in 1280 1500 9000; do
    echo "== rack in namespaces, MTU $mtu"
    sed "s/^mtu: .*/mtu: $mtu/" "$config" >"$config.mtu"
    "$bifrost" rack up -c "$config.mtu" >/dev/null || fail "rack up with MTU $mtu"
    run c1 -- arrays add --size 1048576 --count 2 --by reference || fail "by reference at MTU $mtu"
    run c1 -- arrays increment --size 20000 --count 5 --by value || fail "by value at MTU $mtu"
    "$bifrost" rack down --rack "$name" >/dev/null || fail "rack down"
  done
}

# deployed FILE: deploys an app and waits until all of its programs are ready. removed APP:
# undeploys it and waits until it is gone.
deployed() {
  "$bifrost" deploy --timeout ${patience}s "$1" --rack "$name" >/dev/null || fail "deploy $1: $("$bifrost" apps --rack "$name")"
}
removed() {
  "$bifrost" undeploy "$1" --delete-state --rack "$name" >/dev/null || fail "undeploy $1"
  timeout $patience bash -c 'while "$0" apps --rack "$1" --json | grep -q "$2"; do sleep 0.05; done' "$bifrost" "$name" "\"$1\"" || fail "$1 is not gone"
}

# python_client: programs in Python beside programs in Go. A service that is killed
# and recovers, and one without state, are called from Python; then the second one is
# served from Python, and called from Go.
python_client() {
  echo "== clients/python"
  local py=$PWD/clients/python gen=$config.gen-py
  PYTHONPATH=$py /usr/bin/python3 -m unittest discover -s "$py/tests" || fail "tests of clients/python"
  mkdir "$gen"
  for idl in arrays counter feed; do thrift --gen py -out "$gen" "examples/$idl/$idl.thrift" || fail "thrift --gen py"; done
  "$bifrost" gen --python examples/feed/feed.thrift --out "$gen" >/dev/null || fail "bifrost gen --python"
  sed -e '/^programs:/,$d' "$config" >"$config.python"
  cat >>"$config.python" <<EOF
programs:
  - {name: counter, blade: s2, command: [counter, serve, Counter], services: [Counter], stateful: true}
EOF
  cat >"$gen/echo.py" <<EOF
import bifrost
from arrays import Arrays
with bifrost.join("echo") as node:
    Arrays.Client(node.client("Arrays", timeout=60)).echo(b"data")
EOF
  echo "{name: arrays, programs: [{name: server, command: [arrays, server, --services, Arrays], services: [{name: Arrays}]}, {name: feed, command: [feed, serve], services: [{name: Feed}]}]}" >"$gen/arrays.yaml"
  python() { run c1 -- env PYTHONPATH="$py:$gen" /usr/bin/python3 "$py/$1" "${@:2}"; }
  "$bifrost" rack up -c "$config.python" >/dev/null || fail "rack up for clients/python"
  deployed "$gen/arrays.yaml"
  python tests/rack_test.py || fail "a Python client and Go services"
  python examples/feed_pages.py read 500 10 | tail -n 1 | grep "^10 of 1000 posts" || fail "a Python client reads a list of a Go service in place"
  python examples/counter_asyncio.py 500 2 || fail "a Python client with asyncio"
  python examples/counter_client.py 3000 3 >"$config.calls" &
  hold=$!
  until [ "$(wc -l <"$config.calls")" -gt 20 ]; do kill -0 "$hold" || fail "counter_client.py"; sleep 0.01; done
  "$bifrost" rack fail counter --rack "$name" || fail "rack fail counter"
  [ "$(wc -l <"$config.calls")" -lt 3000 ] || fail "counter_client.py was done before the service was killed"
  wait "$hold" || fail "a Python client's call was lost or counted twice when the service was killed"
  hold=
  tail -n 1 "$config.calls"
  removed arrays
  cp "$py"/examples/* "$gen"
  sed -i "s,{PYTHONPATH: .*},{PYTHONPATH: \"$py:$gen\"}," "$gen/app.yaml"
  deployed "$gen/app.yaml"
  run c1 -- arrays echo --count 100 --by value || fail "a Go client and a Python service, by value"
  run c1 -- arrays echo --size 3000000 --count 3 --by value || fail "a Go client and a Python service, by value beyond a packet"
  run c1 -- arrays add --size 100000 --count 5 --by reference || fail "a Go client and a Python service, by reference"
  run c1 -- feed read --from 995 | tail -n 1 | grep "^5 of 1000 posts" || fail "a Go client reads a list of a Python service in place"
  python examples/feed_pages.py read 995 10 | tail -n 1 | grep "^5 of 1000 posts" || fail "a Python client reads a list of a Python service in place"
  local end=$((SECONDS + patience)) # what clients have left goes when the Gatekeeper has fenced them
  while left=$("$bifrost" calls --rack "$name" --json); [ -n "$left" ]; do
    [ $SECONDS -lt $end ] || fail "calls left: $left"
    sleep 0.05
  done
  removed arrays-python
  sed -i "/policy: none/d" "$gen/app.yaml" # so that callers want exactly-once calls, which a Python program does not take
  deployed "$gen/app.yaml"
  for client in "arrays echo --count 1 --by value --timeout 60s" "env PYTHONPATH=$py:$gen /usr/bin/python3 $gen/echo.py"; do
    if out=$(run c1 -- $client 2>&1); then fail "an exactly-once call to a Python service: $out"; fi
    case $out in *unavailable*ledger*) ;; *) fail "an exactly-once call to a Python service is refused like this: $out" ;; esac
  done
  hosted "$gen"
  "$bifrost" rack down --rack "$name" >/dev/null || fail "rack down"
  rm -r "$gen"
}

# hosted DIR: a service in Python that is exactly once and has state (bifrost host), with the example's files in DIR. Its process is
# killed while a client works, and its host.
hosted() {
  local pid kills=0 calls=0 env="PATH: \"$PWD/bin:$PATH\", PYTHONPATH: \"$PWD/clients/python:$1\", BANK_IDL: $1/bank.thrift, BANK_LETTERS: $1/letters"
  thrift --gen py -out "$1" "$1/bank.thrift" || fail "thrift --gen py"
  sed -i "s|{PYTHONPATH: .*}|{$env}|" "$1/bank.yaml"
  deployed "$1/bank.yaml"
  run c1 -- env PYTHONPATH="$PWD/clients/python:$1" /usr/bin/python3 "$1/bank_client.py" 3000 ada >"$config.calls" &
  hold=$!
  for least in 50 400 800 1200; do
    # Deposits that were made after the last kill show that all processes are back.
    least=$((least > calls + 50 ? least : calls + 50))
    until [ "$(wc -l <"$config.calls")" -gt $least ]; do kill -0 "$hold" || fail "bank_client.py"; sleep 0.01; done
    until pid=$(bank_pid) && [ -n "$pid" ]; do sleep 0.05; done
    [ $((kills % 2)) = 1 ] || pid=$(cat "/proc/$pid/task/"*/children | tr -d ' ')
    kill -9 "$pid" || fail "the bank's process is not there"
    calls=$(wc -l <"$config.calls") kills=$((kills + 1))
  done
  [ "$calls" -lt 3000 ] || fail "bank_client.py was done before the service was killed"
  wait "$hold" || fail "a deposit was lost or counted twice when the service was killed"
  hold=
  tail -n 1 "$config.calls"
  removed bank-python
}

# bank_pid: the process of the bank's host, if it runs.
bank_pid() {
  local blade
  for blade in c1 s1 s2; do
    run "$blade" -- "$bifrost" compute status --json | /usr/bin/python3 -c 'import json, sys
print(*(p["pid"] for p in json.load(sys.stdin).get("programs") or [] if p["name"].startswith("bank-python/")))'
  done 2>/dev/null | grep -m 1 . || true
}

one_rack bifrost 10
mtus
if /usr/bin/python3 -c "import thrift" 2>/dev/null && command -v thrift >/dev/null; then
  python_client
else
  echo "rack-test: clients/python skipped: apt-get install python3-thrift thrift-compiler"
fi
echo "== everything is killed at random, memory blades among it, for a while"
"$bifrost" rack torture --rack "$name" --for "${TORTURE:-20s}" --json || fail "rack torture"
echo "== a hostile program attacks, with raw sockets and without privileges"
"$bifrost" rack torture --hostile --rack "$name" --for 4s --json || fail "rack torture --hostile"
if command -v simple_switch_grpc >/dev/null; then
  one_rack bmv2 3
else
  echo "rack-test: bmv2 skipped: no simple_switch_grpc on PATH"
fi

if command -v mn >/dev/null; then
  echo "== rack under Mininet"
  /usr/bin/python3 -m unittest discover -s mininet || fail "tests of mininet/"
  for switch in bifrost bmv2; do
    [ "$switch" = bifrost ] || command -v simple_switch_grpc >/dev/null || continue
    /usr/bin/python3 mininet/rack.py --switch "$switch" --run "arrays add --size 1048576 --count 3 --by reference" || fail "mininet/rack.py --switch $switch"
  done
  /usr/bin/python3 mininet/rack.py --experiment ping-overhead --quick >/dev/null || fail "mininet/rack.py --experiment"
else
  echo "rack-test: Mininet skipped: apt-get install mininet bridge-utils net-tools iputils-ping"
fi
echo "rack-test: passed"
