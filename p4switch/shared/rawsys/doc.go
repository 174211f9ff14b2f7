// Package rawsys reads and writes descriptors that do not block, without telling
// Go's scheduler.
//
// With package syscall the scheduler may take a thread's processor away while the
// thread is in the kernel. For that, the first call after an idle moment wakes the
// scheduler's monitor, a thread that looks every 20 µs from then on. A call that takes
// longer than that, if only because its CPU does something else, loses its processor,
// and another thread is woken to use the processor. A process that sleeps between
// packets pays for both with every packet: in the switch that was half of the context
// switches and a third of the time. A call that never blocks gains nothing by it.
//
// A call that does block holds up all goroutines of the processor and the garbage
// collector. So these are for descriptors in non-blocking mode, which those of
// package net are.
package rawsys
