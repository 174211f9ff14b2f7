// Package callgraph answers questions about the calls that are under way on the rack: who calls whom, and on behalf of which call
// (thesis section 5.3). It is a pure core: what nodes have told in, answers out; it does no I/O, starts no goroutine and reads no
// clock.
//
// A call is an edge from a caller node to a service on a callee node, and it stands for the execution that serves it: calls whose
// Parent is its id are made by that execution. An execution waits for all calls it has made, one-ways excepted.
//
//   - DomainOf says what the failure of nodes takes back.
//   - Waits finds calls that wait for each other at services with state, which run one call at a time.
package callgraph
