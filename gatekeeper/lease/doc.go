// Package lease decides who may do what with which region of memory (thesis
// section 4.1). testdata/01_table.txt has the rules as a table, row by row. It is a
// pure core: events in, steps out; it does no I/O, starts no goroutine and reads
// no clock. One goroutine owns a Machine.
//
//	Submit(event) ──▶ queue of each region it touches ──▶ judge ──▶ Step
//	                        ▲                                        │
//	                        └──── Done(step.ID) ◀── switch ◀─ revoke, then grant
//
// A Step says what became of an event and which rules change. The caller makes the
// switch revoke, then grant. It reports Done when the switch has done so, or is sure to
// do so before anything else. Only then does the caller release the packet that caused
// the event. Until then the regions of the event are busy, and later events that touch
// one of them wait in order. So the changes of a region are strictly serial, and an
// event is judged by the state that it finds.
//
// A region has one controller and any number of leases, one for each call that
// carries it. The lease belongs to the call, and the call's callee may read. The rules
// of a node follow from that alone: see region.ops.
package lease
