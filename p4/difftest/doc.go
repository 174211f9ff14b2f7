// Package difftest finds differences between executors: it makes packets and
// table entries that meet, and runs them on bmv2, P4's reference software switch,
// where that is installed. It is for tests.
//
//	            ┌──────▶ package interp (Go)
//	Bifrost ────┼──────▶ package ebpf (BPF_PROG_TEST_RUN, and real interfaces)
//	Any         └──────▶ BMv2
//	packets, entries     what comes out must be the same
//
// Bifrost knows Bifröst's program; Any derives from a compiled program what its
// parser accepts, its conditions compare, and its tables match.
package difftest
