#!/bin/sh
# Recompiles the test programs with a p4c (v1.2.3.5) on PATH, and notes what
# they were compiled from, so that a test can tell when they are stale.
set -eu
cd "$(dirname "$0")"
for p in *.p4; do
	p4c-bm2-ss --std p4-16 "$p" -o "${p%.p4}.json"
done
sha256sum -- *.p4 *.json > SHA256SUMS
