#!/usr/bin/env bash
# Installs what the tests use beyond Go, as root on Debian; otherwise says what
# will be skipped and why. Safe to run again.
set -eu
cd "$(dirname "$0")/.."
declare -A need=(
  [thrift]=thrift-compiler [mn]=mininet [brctl]=bridge-utils [ifconfig]=net-tools [ping]=iputils-ping [ip]=iproute2
  [chromium]=chromium [sysctl]=procps [systemd-analyze]=systemd [udevadm]=udev [promtool]=prometheus [redis-server]=redis-server [groff]=groff-base [ethtool]=ethtool [sudo]=sudo [make]=make [gcc]="gcc libc6-dev"
  [curl]=curl [node]=nodejs [tsc]=node-typescript [mypy]=mypy [javac]=openjdk-17-jdk-headless
)
# Modules of Debian's own Python, which mininet, p4/proof and clients/python run with.
declare -A modules=([z3]=python3-z3 [thrift]=python3-thrift [pip]=python3-pip [setuptools]=python3-setuptools [wheel]=python3-wheel)
missing() {
  for cmd in "${!need[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$cmd" >/dev/null || printf ' %s' "${need[$cmd]}"
  done
  for module in "${!modules[@]}"; do
    /usr/bin/python3 -c "import $module" 2>/dev/null || printf ' %s' "${modules[$module]}"
  done
}
want=$(missing)
if [ -n "$want" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  echo "setup: installing$want"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 # names of packages
  if apt-get update -qq && apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 $want >/dev/null; then
    want=
  else
    want=$(missing)
    echo "setup: apt-get has failed"
  fi
fi
# The checker of accessibility that looks at the page, for package checks.
axe=out/axe version=4.14.1
if ! grep -qs "\"version\": \"$version\"" "$axe/package/package.json"; then
  mkdir -p "$axe"
  if command -v npm >/dev/null && (cd "$axe" && npm pack --silent "axe-core@$version" >/dev/null && tar xzf "axe-core-$version.tgz" && rm "axe-core-$version.tgz"); then
    echo "setup: fetched axe-core $version"
  else
    echo "setup: NO axe-core, which npm fetches: the page is not checked for accessibility"
  fi
fi
# Tests skip what they have no program for, but fail once this file says that all were here (p4switch/shared/privilege).
mark=out/setup
rm -f "$mark"
[ -n "$want" ] || echo "all that scripts/setup.sh installs was here" >"$mark"
if [ -n "$want" ]; then
  echo "setup: NOT INSTALLED:$want"
  echo "setup: the tests that need them are skipped; as root on Debian: apt-get install$want"
fi
