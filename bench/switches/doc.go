// Package switches measures what joins two hosts: the software switch on both
// its executors with Bifröst's whole program and many rules, a Linux bridge, a
// bare cable, and, where installed, Open vSwitch in user space and bmv2 with the
// same program and rules.
//
//	┌─ namespace a ─┐   ┌────── namespace s ──────┐   ┌─ namespace b ─┐
//	│ client        ├───┤ bridge, ebpf, go, ovs … ├───┤ server        │
//	└───────────────┘   └───────────▲─────────────┘   └───────────────┘
//	                       P4Runtime│ rules
//
// Client and server run on a CPU each, since an unpinned round trip has two
// modes, and use blocking system calls, so that no scheduler but the kernel's is
// measured. Contenders take turns, thing by thing, in short rounds, and are compared
// round by round, so that what else happens on the machine meets all of them. Rules change through P4Runtime as a
// controller changes them.
//
// Soak is no measurement but a test: rules change for a long time under full
// load, and each packet's verdict is checked against what was answered.
//
// Everything needs root and is gone afterwards.
package switches
