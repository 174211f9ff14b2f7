#!/bin/sh
# Recompiles the program with a p4c on PATH, and notes what it was compiled from, so that a test can tell when it is stale.
set -eu
cd "$(dirname "$0")"
p4c-bm2-ss --std p4-16 sample.p4 -o sample.json --p4runtime-files sample.p4info.txt
sha256sum -- sample.p4 sample.json sample.p4info.txt >SHA256SUMS
