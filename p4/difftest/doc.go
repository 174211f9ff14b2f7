// Package difftest finds differences between executors: it makes packets and
// table entries of Bifröst's program that meet, and runs those of any program on bmv2,
// P4's reference software switch, where that is installed. It is for tests.
//
//	            ┌──────▶ package interp (Go)
//	Bifrost ────┼──────▶ package ebpf (BPF_PROG_TEST_RUN, and real interfaces)
//	inputs      └──────▶ BMv2
//	packets, entries     what comes out must be the same
//
// Bifrost knows Bifröst's program; package inputs derives packets and entries from any.
package difftest
