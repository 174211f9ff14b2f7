#!/bin/sh
# Recompiles the program of bench switch --stateful with a p4c on PATH, and notes what
# it was compiled from, so that a test can tell when it is stale.
set -eu
cd "$(dirname "$0")"
p4c-bm2-ss --std p4-16 stateful.p4 -o stateful.json --p4runtime-files stateful.p4info.txt
sha256sum -- stateful.* > SHA256SUMS
