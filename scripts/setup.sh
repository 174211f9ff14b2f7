#!/usr/bin/env bash
# Installs what the tests use beyond Go, as root on Debian; otherwise says what
# will be skipped and why. Safe to run again.
set -eu
declare -A need=(
  [thrift]=thrift-compiler [mn]=mininet [brctl]=bridge-utils [ifconfig]=net-tools [ping]=iputils-ping [ip]=iproute2
  [chromium]=chromium [sysctl]=procps [systemd-analyze]=systemd [groff]=groff-base
)
missing=()
for cmd in "${!need[@]}"; do
  command -v "$cmd" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$cmd" >/dev/null || missing+=("${need[$cmd]}")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: not installed: ${missing[*]}"
  echo "setup: the tests that need them are skipped; as root on Debian: apt-get install ${missing[*]}"
  exit 0
fi
echo "setup: installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
