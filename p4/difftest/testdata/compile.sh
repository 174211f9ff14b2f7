#!/bin/sh
# Writes the P4Info of the executors' test programs, with a p4c (v1.2.3.5) on
# PATH. The programs themselves, and what they compile to, are with the executors.
set -eu
cd "$(dirname "$0")"
for p in ../../../p4switch/interp/testdata/*.p4 ../../../p4switch/ebpf/testdata/*.p4; do
	name=$(basename "$p" .p4)
	p4c-bm2-ss --std p4-16 --p4runtime-files "$name.p4info.txt" -o /dev/null "$p"
done
sha256sum -- ../../../p4switch/interp/testdata/*.p4 ../../../p4switch/ebpf/testdata/*.p4 ./*.p4info.txt >SHA256SUMS
