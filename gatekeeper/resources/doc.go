// Package resources knows what a rack has and who uses it: blades, nodes,
// and the programs that were deployed on it (thesis section 5.3). It is a pure core:
// calls in, actions out; it does no I/O, starts no goroutine and reads no clock. One
// goroutine owns a Registry.
//
//	hello, lost ──────┐                        ┌─▶ BladeDown
//	join, exported ───┤                        ├─▶ EndNode ──▶ Ended ─────────┐
//	deploy, undeploy ─┼──▶ Registry ──▶ actions┼─▶ StartNode, StopNode        │
//	                  │                        ├─▶ EmptyNode ──▶ Emptied ─────┤
//	drain, fail ──────┤        ▲               │                              │
//	tick ─────────────┘        └───────────────┼──────────────────────────────┘
//	                                           └─▶ GiveUp, Short, RolledOut, RolledBack, Drained
//
// What the switch has to know is the Gatekeeper's own: ports, addresses, machine ids,
// services with their methods and routes, memory that is in use, and which blades are silent.
// The Registry asks a Rack whether a node exports a service.
//
// An Action is plain data that says what must become true in the rack; the
// Gatekeeper turns it into switch rules and control messages, in the order given.
// Each action may be carried out twice without harm. Two of them are answered:
// EndNode, by Ended, once the node is fenced and its rules are gone; until then its
// address belongs to it, and nothing takes its place. And EmptyNode, by
// Emptied, once a node that is to be stopped has finished its calls. If such a node
// ends before that, its instance goes on elsewhere until they are finished. If the deployment is
// taken back, the instance's next node is an heir: it answers what is known of the calls, ends
// what had begun, and leaves by itself.
//
// Nodes come about in two ways. A program that somebody starts on a blade joins
// by itself, and is gone for good when it ends. A deployed program (Spec) is
// started here: placed on a compute blade, started again when it fails, moved
// when its blade fails or is drained, emptied before it is stopped. Each of its nodes
// is an Instance:
//
//	Waiting ─ StartNode ─▶ Starting ─ join ─▶ Running ─ crash, blade gone ─▶ Ending
//	   ▲                      │ failed                                         │
//	   └──────────────────────┴───────────────── Ended ────────────────────────┘
//
// Placement keeps three promises: a blade never hosts more nodes than its
// capacity, spares included; no two nodes of a service share a blade; and the
// spares of a deployment are reserved until one of its nodes needs them.
package resources
