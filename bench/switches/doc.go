// Package switches measures what joins two hosts: the software switch on both
// its executors with Bifröst's whole program and many rules, a Linux bridge, and
// a bare cable.
//
//	┌─ namespace a ─┐   ┌──── namespace s ────┐   ┌─ namespace b ─┐
//	│ client        ├───┤ bridge, ebpf or go  ├───┤ server        │
//	└───────────────┘   └─────────────────────┘   └───────────────┘
//
// Client and server run on a CPU each, since an unpinned round trip has two
// modes, and use blocking system calls, so that no scheduler but the kernel's is
// measured. Contenders take turns in rounds; a round is short, so that what else
// happens on the machine meets all of them. Everything needs root and is gone
// afterwards.
package switches
