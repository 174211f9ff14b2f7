// Package rawsys reads and writes descriptors that do not block, without telling
// Go's scheduler.
//
// With package syscall the scheduler may take a thread's processor away while the
// thread is in the kernel. For that, the first call after an idle moment wakes the
// scheduler's monitor, a thread that looks every 20 µs from then on; and a call that
// takes longer than that, if only since its CPU does something else, goes on without
// its processor, which another thread is woken for. A process that sleeps between
// packets pays for both by every packet: in the switch that was half of its context
// switches and a third of its time. A call that never blocks gains nothing by it.
//
// A call that does block holds up all goroutines of the processor and the garbage
// collector. So these are for descriptors in non-blocking mode, which those of
// package net are.
package rawsys
