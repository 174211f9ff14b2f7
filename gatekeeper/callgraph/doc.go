// Package callgraph knows the calls that are under way on the rack: who calls
// whom, on behalf of which call, with which pointers, and how far it has got
// (thesis section 5.3). It is a pure core: events in,
// answers out; it does no I/O, starts no goroutine and reads no clock. One
// goroutine owns a Graph.
//
//	        a1            b1             b2             a2
//	caller ─┬─ Sent ──▶ Delivered ──▶ Finished ──▶ Returned ─▶ removed
//	        │              │ executes
//	        │              └─ Sent (its Parent is the call above) ─▶ …
//
// A call is an edge from a caller node to a service on a callee node, and it
// stands for the execution that serves it: calls whose Parent is its id are made
// by that execution. An execution waits for all calls it has made, one-ways
// excepted.
//
// A stateful ("serial") service runs one call at a time, in the order of Sent.
// So a call into it waits for the call that it runs now, and thereby for
// whatever that one waits for. If that is, over any number of services, this
// very call, Sent refuses it with a *Deadlock before it becomes part of the
// graph; the graph of waits therefore never has a cycle.
//
// Calls that the switch does not hold are known from digests, which can be lost:
// mark them Loose, and Expire those whose end nobody has heard of.
//
// The graph is compact, so that a million calls under way need a fraction of a
// gibibyte and no event takes longer than microseconds: what repeats (nodes,
// services, methods) is interned, lists are indices within fixed-size records,
// and nothing in a record is a Go pointer that the collector would follow.
// Memory is used again for later calls, not given back.
package callgraph
